// The forms of the calculators. <div class="calculator" data-calculator="memory"> becomes a form, a sentence that
// screen readers announce, a picture and a table with the same figures. All inputs are plain form controls.

(() => {
  const { memory, pipeline, stragglers, bandwidth } = globalThis.paceline;

  const CALCULATORS = {
    memory: {
      title: "Memory of a GPT",
      inputs: [
        number("layers", "Layers", 24, 1, 512),
        number("hidden", "Hidden size", 2048, 64, 65536, 64),
        number("heads", "Heads", 16, 1, 512),
        number("sequence", "Tokens of a sample", 2048, 1, 131072),
        number("vocabulary", "Vocabulary", 51200, 2, 1000000),
        number("microbatch", "Samples of a micro-batch", 1, 1, 4096),
        number("microbatches", "Micro-batches", 8, 1, 4096),
        number("data", "Data-parallel rows", 8, 1, 65536),
        number("pipeline", "Pipeline stages", 2, 1, 256),
        number("tensor", "Tensor group", 4, 1, 64),
        choice("zero", "ZeRO", { 0: "0: nothing sharded", 1: "1: optimizer", 2: "2: and gradients" }, 1),
        choice("precision", "Precision (+ master copy)", { bf16: "bf16 + fp32", fp32: "fp32" }, "bf16"),
        choice("recompute", "Activations", { "": "stored", yes: "recomputed" }, ""),
      ],
      check(v) {
        if (v.layers % v.pipeline) return "Layers must be a multiple of the pipeline stages.";
        if (v.heads % v.tensor) return "Heads must be a multiple of the tensor group.";
        if (v.recompute && v.zero === "2") return "With recomputed activations, choose ZeRO 0 or 1.";
        if (v.hidden % v.heads) return "The hidden size must be a multiple of the heads.";
        return "";
      },
      show(v) {
        const found = memory({ ...v, zero: Number(v.zero), recompute: v.recompute === "yes" });
        const parts = ["parameters", "gradients", "optimizer", "activations"].map((name) => [name, found[name]]);
        const workers = v.data * v.pipeline * v.tensor;
        const batch = v.microbatch * v.microbatches * v.data;
        const sentence =
          `Each worker needs at most ${bytes(found.total)} (stage ${found.rank}). ` +
          `${workers} workers train a batch of ${batch} samples.`;
        const spec = `hybrid:pipeline=${v.pipeline},tensor=${v.tensor},zero=${v.zero},microbatches=${v.microbatches}`;
        const rows = [...parts, ["total", found.total]].map(([name, value]) => [name, bytes(value)]);
        return { sentence, rows: [...rows, ["strategy", spec]], picture: (wide) => bars([["memory", parts]], bytes, wide) };
      },
    },
    pipeline: {
      title: "Bubble of a pipeline",
      inputs: [
        number("stages", "Stages", 4, 1, 32),
        number("microbatches", "Micro-batches", 8, 1, 128),
        choice("order", "Order", orders(), "1f1b"),
        number("chunks", "Chunks of a rank (interleaved)", 2, 2, 8),
        number("forward", "Forward, ms", 10, 0.01, 1e6, "any"),
        number("inputs", "Gradient of inputs, ms", 10, 0.01, 1e6, "any"),
        number("weights", "Gradient of weights, ms", 10, 0.01, 1e6, "any"),
      ],
      check: () => "",
      show(v) {
        const found = pipeline(v);
        const most = Math.max(...found.activations);
        const chunk = v.order === "interleaved" ? "chunk" : "stage";
        const sentence =
          `A step takes ${milliseconds(found.seconds)}, and the bubble is ${percent(found.bubble)} of it. ` +
          `A rank stores the activations of up to ${most} micro-batches in a ${chunk}.`;
        const rows = [
          ["seconds of a step", milliseconds(found.seconds)],
          ["bubble", percent(found.bubble)],
          ["stored activations, by rank", found.activations.join(", ")],
        ];
        return { sentence, rows, picture: (wide) => timeline(found.timed, wide) };
      },
    },
    stragglers: {
      title: "Waiting, or not",
      inputs: [
        choice("distribution", "Time of a gradient", distributions(), "shifted"),
        number("mean", "Mean (of the random part), ms", 10, 0.001, 1e6, "any"),
        number("shift", "Fixed part, ms (shifted)", 20, 0, 1e6, "any"),
        number("minimum", "Least, ms (Pareto)", 20, 0.001, 1e6, "any"),
        number("shape", "Shape (Pareto)", 2.5, 1.01, 100, "any"),
        number("workers", "Workers", 16, 1, 4096),
        number("k", "k: gradients of an update", 12, 1, 4096),
      ],
      check: (v) => (v.k > v.workers ? "k must be at most the number of workers." : ""),
      show(v) {
        const found = Object.entries(stragglers(v));
        const by = Object.fromEntries(found);
        const gain = by.sync.seconds / by["k-sync"].seconds;
        const sentence =
          `Waiting for all ${v.workers} workers takes ${milliseconds(by.sync.seconds)} per update; ` +
          `waiting for the first ${v.k} is ${gain.toFixed(2)} times as fast. ` +
          `async updates every ${milliseconds(by.async.seconds)}, with a mean staleness of ${by.async.staleness}.`;
        const rows = found.map(([name, each]) => [
          name,
          each.seconds === null ? "no closed form: simulate it" : `${milliseconds(each.seconds)} per update`,
          `staleness ${figure(each.staleness)}`,
        ]);
        const drawn = found.filter(([, each]) => Number.isFinite(each.seconds) && each.seconds !== null);
        const lines = drawn.map(([name, each]) => [name, [["per update", each.seconds]]]);
        return { sentence, rows, picture: (wide) => bars(lines, milliseconds, wide) };
      },
    },
    bandwidth: {
      title: "Bandwidth that gradients need",
      inputs: [
        number("millions", "Parameters, millions", 125, 0.001, 1e6, "any"),
        choice("number", "Bytes of a number", { 4: "4 (fp32)", 2: "2 (bf16)" }, 4),
        number("workers", "Workers", 16, 1, 65536),
        number("compute", "Computation of a step, ms", 200, 0.001, 1e7, "any"),
        number("gigabits", "Bandwidth, Gbit/s", 10, 0.001, 1e5, "any"),
        number("microseconds", "Latency, µs", 50, 0, 1e6, "any"),
        choice("algorithm", "Algorithm", { ring: "ring", tree: "tree" }, "ring"),
        number("period", "Steps between exchanges (local SGD)", 1, 1, 100000),
        choice("codec", "Codec", codecs(), "none"),
      ],
      check(v) {
        const isPower = Number.isInteger(Math.log2(v.workers));
        return v.algorithm === "tree" && !isPower ? "With tree, workers must be a power of two." : "";
      },
      show(v) {
        const options = { ...v, parameters: v.millions * 1e6, number: Number(v.number), share: 0.1 };
        const found = bandwidth({ ...options, compute: v.compute / 1e3, latency: v.microseconds / 1e6 });
        const needed = Number.isFinite(found.needed) ? `${figure(found.needed)} Gbit/s` : "not reachable: latency";
        const sentence =
          `Communication takes ${percent(found.share)} of a step if it does not overlap with computation. ` +
          `To take 10 %, it needs ${needed}.`;
        const rows = [
          ["sent by a worker, per step", bytes(found.bytes)],
          ["communication of a step", milliseconds(1e3 * found.seconds)],
          ["share of a step", percent(found.share)],
          ["bandwidth for a share of 10 %", needed],
        ];
        const parts = [["computation", v.compute], ["communication", 1e3 * found.seconds]];
        return { sentence, rows, picture: (wide) => bars([["a step", parts]], milliseconds, wide) };
      },
    },
  };

  function orders() {
    return Object.fromEntries(["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2"].map((name) => [name, name]));
  }

  function distributions() {
    return {
      constant: "constant",
      exponential: "exponential",
      shifted: "fixed + exponential",
      pareto: "Pareto (heavy tail)",
    };
  }

  function codecs() {
    const names = ["none", "bf16", "fp16", "int8", "int4", "sign", "topk-0.01"];
    return Object.fromEntries(names.map((name) => [name, name]));
  }

  function number(name, label, value, min, max, step = 1) {
    return { name, label, value, min, max, step };
  }

  function choice(name, label, options, value) {
    return { name, label, options, value };
  }

  // Figures

  function figure(value) {
    return value === 0 ? "0" : String(Number(value.toPrecision(3)));
  }

  function scaled(value, units) {
    const [size, unit] = units.find(([least]) => value >= least) ?? units.at(-1);
    return `${figure(value / size)} ${unit}`;
  }

  function bytes(value) {
    return scaled(value, [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [1024, "KiB"], [1, "B"]]);
  }

  function milliseconds(value) {
    if (!Number.isFinite(value)) return "infinite";
    return scaled(value, [[1000, "s"], [1, "ms"], [1e-3, "µs"], [1e-6, "ns"]]);
  }

  function percent(share) {
    return `${(100 * share).toFixed(1)} %`;
  }

  // Elements

  function element(tag, attributes, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }

  function shape(tag, attributes, ...children) {
    return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  }

  function fill(made, attributes, children) {
    Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
    made.append(...children);
    return made;
  }

  // Horizontal bars of parts, all on one scale. One unit of a picture is one pixel.
  function bars(lines, words, wide) {
    const most = Math.max(...lines.map(([, parts]) => parts.reduce((sum, [, value]) => sum + value, 0)));
    const picture = shape("svg", { viewBox: `0 0 ${wide} ${lines.length * 34}`, "aria-hidden": "true" });
    lines.forEach(([name, parts], line) => {
      let x = 90;
      picture.append(shape("text", { x: 0, y: 34 * line + 20, class: "name" }, name));
      parts.forEach(([part, value], place) => {
        const width = ((wide - 90) * value) / (most || 1);
        const rect = shape("rect", { x, y: 34 * line + 4, width, height: 24, class: `part-${place}` });
        rect.append(shape("title", {}, `${part}: ${words(value)}`));
        picture.append(rect);
        if (width > 7.5 * part.length) picture.append(shape("text", { x: x + 4, y: 34 * line + 20 }, part));
        x += width;
      });
    });
    return picture;
  }

  // A lane for each rank of a pipeline.
  function timeline(timed, wide) {
    const end = Math.max(...timed.map((each) => each.at(-1).end));
    const picture = shape("svg", { viewBox: `0 0 ${wide} ${timed.length * 22}`, "aria-hidden": "true" });
    timed.forEach((actions, rank) => {
      picture.append(shape("text", { x: 0, y: 22 * rank + 15, class: "name" }, `rank ${rank}`));
      for (const each of actions) {
        const x = 50 + ((wide - 50) * each.start) / end;
        const width = ((wide - 50) * (each.end - each.start)) / end;
        const kind = { F: 0, BW: 1, B: 2, W: 3 }[each.phase];
        picture.append(shape("rect", { x, y: 22 * rank + 2, width, height: 18, class: `part-${kind}` }));
        const label = String(each.micro + 1);
        if (width > 8 * label.length) picture.append(shape("text", { x: x + 2, y: 22 * rank + 15 }, label));
      }
    });
    return picture;
  }

  function field(input, prefix) {
    const id = `${prefix}-${input.name}`;
    const label = element("label", { for: id }, input.label);
    if (!input.options) {
      const { min, max, step, value } = input;
      return element("p", {}, label, element("input", { id, name: input.name, type: "number", min, max, step, value, required: "" }));
    }
    const select = element("select", { id, name: input.name });
    Object.entries(input.options).forEach(([value, text]) => select.append(element("option", { value }, text)));
    select.value = input.value;
    return element("p", {}, label, select);
  }

  function start(place, number) {
    const calculator = CALCULATORS[place.dataset.calculator];
    const fields = calculator.inputs.map((input) => field(input, `${place.dataset.calculator}-${number}`));
    const form = element("form", { "aria-label": calculator.title }, ...fields);
    const sentence = element("p", { class: "result", role: "status" });
    const picture = element("div", { class: "picture" });
    const table = element("table", { "aria-label": `${calculator.title}: figures` });
    place.replaceChildren(form, sentence, picture, element("div", { class: "table-wrapper" }, table));
    const update = () => {
      const values = valuesOf(calculator.inputs, form);
      const refusal = form.checkValidity() ? calculator.check(values) : firstRefusal(form);
      const shown = refusal ? { sentence: refusal, rows: [], picture: () => "" } : calculator.show(values);
      sentence.textContent = shown.sentence;
      picture.replaceChildren(shown.picture(Math.max(300, place.clientWidth)));
      table.replaceChildren(...shown.rows.map(row));
    };
    form.addEventListener("input", update);
    addEventListener("resize", update);
    form.addEventListener("submit", (event) => event.preventDefault());
    update();
  }

  function firstRefusal(form) {
    const wrong = form.querySelector(":invalid");
    return `${form.querySelector(`label[for="${wrong.id}"]`).textContent}: ${wrong.validationMessage}`;
  }

  function valuesOf(inputs, form) {
    const value = (each) => form.elements[each.name].value;
    return Object.fromEntries(inputs.map((each) => [each.name, each.options ? value(each) : Number(value(each))]));
  }

  function row([name, ...values]) {
    return element("tr", {}, element("th", { scope: "row" }, name), ...values.map((each) => element("td", {}, each)));
  }

  document.querySelectorAll(".calculator").forEach(start);
})();
