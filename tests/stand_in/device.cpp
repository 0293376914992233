// A device of two units whose memory the processor cannot touch: what a GPU is to a program, without its speed.
//
// Every allocation has a half that belongs to the device and a half that belongs to this file. A tensor's address lies
// in the first, which is mapped without any permission: who reads a device's memory as if it were the processor's gets
// SIGSEGV, as with a GPU. Operations are done on the second half, by the processor's own kernels: the results have the
// same bits. An operation that gets tensors of this device and of another raises, as torch's own devices do.

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <set>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

namespace {

using at::Tensor;

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kUnits = 2;

thread_local c10::DeviceIndex current_unit = 0;
std::atomic<int64_t> synchronized{0};

// Memory

struct Block {
  char* device;
  size_t half_bytes;
};

size_t whole_pages(size_t nbytes) {
  size_t page = sysconf(_SC_PAGESIZE);
  return (nbytes + page - 1) / page * page;
}

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  munmap(block->device, 2 * block->half_bytes);
  delete block;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    c10::Device device(kDevice, current_unit);
    if (nbytes == 0) {
      return {nullptr, device};
    }
    size_t half = whole_pages(nbytes);
    void* memory = mmap(nullptr, 2 * half, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(memory != MAP_FAILED, "the device has no memory left");
    auto* base = static_cast<char*>(memory);
    TORCH_CHECK(mprotect(base + half, half, PROT_READ | PROT_WRITE) == 0, "mprotect failed");
    return {base, new Block{base, half}, &free_block, device};
  }
  void copy_data(void* to, const void* from, size_t nbytes) const override {
    TORCH_CHECK(false, "not needed");
  }
};

DeviceAllocator device_allocator;
REGISTER_ALLOCATOR(kDevice, &device_allocator);

// The same memory as a tensor of the processor. It must not outlive the storage.
Tensor mirror(const Tensor& tensor) {
  const auto& pointer = tensor.storage().data_ptr();
  char* base = nullptr;
  if (pointer.get() != nullptr) {
    base = static_cast<char*>(pointer.get()) + static_cast<Block*>(pointer.get_context())->half_bytes;
  }
  // A kernel may resize what it writes to: it then gets other memory.
  c10::Storage storage(
      c10::Storage::use_byte_size_t(),
      tensor.storage().nbytes(),
      c10::DataPtr(base, c10::DeviceType::CPU),
      c10::GetAllocator(c10::DeviceType::CPU),
      /*resizable=*/true);
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) {
    made._set_conj(true);
  }
  if (tensor.is_neg()) {
    made._set_neg(true);
  }
  return made;
}

bool is_here(const Tensor& tensor) {
  return tensor.device().type() == kDevice;
}

// What the processor's kernels cannot do: memory, and copies between devices

Tensor empty_strided(
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>,
    std::optional<c10::Device> device,
    std::optional<bool>) {
  c10::DeviceGuard guard(device.value_or(c10::Device(kDevice, current_unit)));
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size),
      C10_AS_INTARRAYREF_SLOW(stride),
      &device_allocator,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype));
}

Tensor empty(
    c10::SymIntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>,
    std::optional<c10::Device> device,
    std::optional<bool>,
    std::optional<c10::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(c10::Device(kDevice, current_unit)));
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size),
      &device_allocator,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype),
      format);
}

Tensor copy_from(const Tensor& source, const Tensor& target, bool) {
  auto from = is_here(source) ? mirror(source) : source;
  auto to = is_here(target) ? mirror(target) : target;
  to.copy_(from);
  return target;
}

void set_bytes(const c10::Storage& storage, size_t nbytes) {
  auto* storage_impl = storage.unsafeGetStorageImpl();
  auto old_bytes = storage_impl->nbytes();
  c10::DeviceGuard guard(storage.device());
  auto fresh = device_allocator.allocate(nbytes);
  const auto& old = storage.data_ptr();
  if (fresh.get() != nullptr && old.get() != nullptr) {
    auto* to = static_cast<char*>(fresh.get()) + static_cast<Block*>(fresh.get_context())->half_bytes;
    auto* from = static_cast<char*>(old.get()) + static_cast<Block*>(old.get_context())->half_bytes;
    std::memcpy(to, from, std::min(nbytes, old_bytes));
  }
  storage_impl->set_data_ptr_noswap(std::move(fresh));
  storage_impl->set_nbytes(nbytes);
}

const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef size, std::optional<c10::MemoryFormat>) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto* tensor_impl = self.unsafeGetTensorImpl();
  tensor_impl->set_sizes_contiguous(sizes);
  size_t needed = (tensor_impl->numel() + tensor_impl->storage_offset()) * tensor_impl->dtype().itemsize();
  if (needed > self.storage().nbytes()) {
    set_bytes(self.storage(), needed);
  }
  return self;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  if (source.sizes() != target.sizes()) {
    target.resize_(source.sizes());
  }
  return copy_from(source, target, false);
}

Tensor& set_storage(
    Tensor& self,
    at::Storage source,
    c10::SymInt offset,
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride) {
  auto* tensor_impl = self.unsafeGetTensorImpl();
  tensor_impl->set_storage_keep_dtype(std::move(source));
  tensor_impl->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return self;
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  auto* tensor_impl = self.unsafeGetTensorImpl();
  tensor_impl->set_storage_keep_dtype(source.storage());
  tensor_impl->set_sizes_and_strides(source.sizes(), source.strides(), source.storage_offset());
  return self;
}

// All other operations: by the processor's kernels

// One call, with tensors of the processor in the place of the device's.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack) : op_(op), stack_(stack) {}

  void run() {
    const auto& arguments = op_.schema().arguments();
    auto values = torch::jit::last(*stack_, arguments.size()).vec();
    torch::jit::drop(*stack_, arguments.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const auto* alias = arguments[i].alias_info();
      stack_->push_back(replaced(values[i], alias != nullptr && alias->isWrite()));
    }
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
    for (const auto& [own, theirs, base] : written_) {
      if (theirs.storage().data() != base || theirs.sizes() != own.sizes()) {
        copy_from_and_resize(theirs, own);
      }
    }
    const auto& returns = op_.schema().returns();
    auto results = torch::jit::last(*stack_, returns.size()).vec();
    torch::jit::drop(*stack_, returns.size());
    for (size_t i = 0; i < results.size(); ++i) {
      const auto* alias = returns[i].alias_info();
      stack_->push_back(alias == nullptr ? returned(results[i]) : aliased(results[i], *alias, values));
    }
  }

 private:
  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  c10::Device device_{kDevice, current_unit};
  std::optional<c10::Device> found_;
  std::vector<std::tuple<Tensor, Tensor, const void*>> written_;

  // Torch's own devices take numbers of the processor, and indices into a tensor. This one takes numbers alone.
  Tensor replaced(const Tensor& tensor, bool written) {
    if (!tensor.defined() || (tensor.device().is_cpu() && tensor.dim() == 0)) {
      return tensor;
    }
    TORCH_CHECK(
        !found_ || *found_ == tensor.device(),
        op_.schema().name(), " got tensors of ", *found_, " and of ", tensor.device(), "; all must be on one device");
    found_ = tensor.device();
    if (!is_here(tensor)) {
      return tensor;
    }
    device_ = tensor.device();
    auto made = mirror(tensor);
    if (written) {
      written_.emplace_back(tensor, made, made.storage().data());
    }
    return made;
  }

  c10::IValue replaced(const c10::IValue& value, bool written) {
    if (value.isTensor()) {
      return replaced(value.toTensor(), written);
    }
    if (value.isDevice()) {
      device_ = value.toDevice().has_index() ? value.toDevice() : device_;
      return c10::Device(c10::DeviceType::CPU);
    }
    if (value.isTensorList()) {
      c10::List<Tensor> made;
      for (const Tensor& tensor : value.toTensorList()) {
        made.push_back(replaced(tensor, written));
      }
      return made;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> made;
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorList()) {
        made.push_back(tensor ? std::optional<Tensor>(replaced(*tensor, written)) : std::nullopt);
      }
      return made;
    }
    return value;
  }

  // New memory, on the device.
  Tensor returned(const Tensor& tensor) {
    if (!tensor.defined()) {
      return tensor;
    }
    c10::DeviceGuard guard(device_);
    Tensor made = at::detail::empty_strided_generic(
        tensor.sizes(), tensor.strides(), &device_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
        tensor.scalar_type());
    mirror(made).copy_(tensor);
    return made;
  }

  c10::IValue returned(const c10::IValue& value) {
    if (value.isTensor()) {
      return returned(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<Tensor> made;
      for (const Tensor& tensor : value.toTensorList()) {
        made.push_back(returned(tensor));
      }
      return made;
    }
    return value;
  }

  // An argument itself, or a view of it.
  c10::IValue aliased(
      const c10::IValue& value, const c10::AliasInfo& alias, const std::vector<c10::IValue>& values) {
    const auto& arguments = op_.schema().arguments();
    size_t place = 0;
    while (arguments[place].alias_info() == nullptr ||
           arguments[place].alias_info()->beforeSets() != alias.beforeSets()) {
      ++place;
    }
    if (alias.isWrite()) {
      return values[place];
    }
    TORCH_CHECK(value.isTensor(), op_.schema().name(), " gives several views, which this device cannot");
    const auto& seen = value.toTensor();
    const auto& whole = values[place].toTensor();
    auto made = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(whole.storage()), whole.key_set(), seen.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(seen.sizes(), seen.strides(), seen.storage_offset());
    return made;
  }
};

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call(op, stack).run();
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
}

// The device itself

using Moment = std::chrono::steady_clock::time_point;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kDevice;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return {kDevice, current_unit};
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(0 <= device.index() && device.index() < kUnits, "there is no ", device);
    current_unit = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_unit = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return kUnits;
  }
  // An event is the moment at which it was recorded: work is done as soon as it is given.
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Moment;
    }
    *static_cast<Moment*>(*event) = std::chrono::steady_clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Moment*>(event);
  }
  void synchronizeEvent(void*) const override {
    ++synchronized;
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    std::chrono::duration<double, std::milli> taken = *static_cast<Moment*>(end) - *static_cast<Moment*>(begin);
    return taken.count();
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {
    ++synchronized;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Memory of the processor that the device can copy from by itself. Which addresses are, is all that matters here.
std::mutex pinned_lock;
std::set<const void*> pinned;

void free_pinned(void* memory) {
  std::lock_guard<std::mutex> held(pinned_lock);
  pinned.erase(memory);
  c10::free_cpu(memory);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    void* memory = nbytes ? c10::alloc_cpu(nbytes) : nullptr;
    std::lock_guard<std::mutex> held(pinned_lock);
    pinned.insert(memory);
    return {memory, memory, &free_pinned, c10::DeviceType::CPU};
  }
  void copy_data(void* to, const void* from, size_t nbytes) const override {
    std::memcpy(to, from, nbytes);
  }
};

PinnedAllocator pinned_allocator;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return kUnits;
  }
  bool isPinnedPtr(const void* memory) const override {
    std::lock_guard<std::mutex> held(pinned_lock);
    return pinned.count(memory) != 0;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_allocator;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    set_bytes(storage, nbytes);
  }
};

Hooks hooks;

[[maybe_unused]] const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

int64_t count_synchronized() {
  return synchronized;
}

TORCH_LIBRARY(stand_in, m) {
  m.def("synchronized() -> int", count_synchronized);
}

} // namespace
