import networkx

from paceline.schedules.topologies import build_topology, facts_of


def test_a_ring_in_figures():
    facts = facts_of(build_topology("ring", 16), 1000)
    assert (facts.degree, facts.diameter, facts.steps_to_consensus) == ("2", 8, 133)
    assert (facts.bytes_per_step_and_peer, facts.bytes_per_step) == (2000, 32_000)


def test_the_hub_of_a_star_sends_most():
    facts = facts_of(build_topology("star", 5), 10)
    assert (facts.degree, facts.smallest_degree, facts.largest_degree) == ("1 to 4", 1, 4)
    assert (facts.bytes_per_step_and_peer, facts.bytes_per_step) == (40, 80)


def test_a_step_of_one_peer_exponential_sends_once_from_each():
    facts = facts_of(build_topology("one-peer-exponential", 8), 10)
    assert (facts.period, facts.degree, facts.steps_to_consensus) == (3, "1", 3)
    assert (facts.bytes_per_step_and_peer, facts.bytes_per_step) == (10, 80)


def test_what_never_happens_is_none():
    topology = build_topology(networkx.Graph([(0, 1), (2, 3)]), allow_disconnected=True)
    facts = facts_of(topology, 10).as_dict()
    assert (facts["spectral_gap"], facts["diameter"], facts["steps_to_consensus"]) == (0, None, None)
