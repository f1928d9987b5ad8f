"""Which interface leads to other hosts; none of these tests sends anything."""

import socket

from deep_ll.runtime import network
from deep_ll.runtime.network import Place


def test_ranks_of_one_host_use_the_loopback() -> None:
    here = network.here()
    assert network.device_to(here, [here, network.here()]) == "lo"


def test_place_names_interfaces_that_others_reach() -> None:
    addresses = network.here().addresses
    assert "lo" not in addresses
    for name, address in addresses.items():
        assert socket.if_nametoindex(name)
        assert socket.inet_aton(address)


def test_other_host_on_the_same_network() -> None:
    here = network.here()
    own = Place(here.host, {"own0": "127.0.0.1"})  # what a route to the other one begins with here
    other = Place("another host", {"eth0": "127.0.0.2"})
    assert network.device_to(own, [own, other]) == "own0"


def test_address_that_each_host_has_leads_nowhere() -> None:
    own = Place("this host", {"bridge0": "127.0.0.1"})
    other = Place("another host", {"bridge0": "127.0.0.1"})
    assert network.device_to(own, [own, other]) is None


def test_other_host_without_addresses() -> None:
    own = Place("this host", {"own0": "127.0.0.1"})
    assert network.device_to(own, [Place("another host", {})]) is None
