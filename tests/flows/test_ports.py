"""Ports of local services: the preferred ones, or others that no outgoing connection takes."""

from __future__ import annotations

import socket

from flows.local_services.paths import HOST, OTHER_PORTS, choose_ports


def test_a_port_that_is_free_is_kept_and_one_that_is_taken_is_replaced():
    with socket.create_server((HOST, 0)) as taken:
        number = taken.getsockname()[1]
        (free,) = choose_ports((0,))
        kept, replaced = choose_ports((free, number))
    assert kept == free
    assert replaced != number
    assert replaced in OTHER_PORTS


def test_services_that_prefer_one_port_get_different_ones():
    (free,) = choose_ports((0,))
    ports = choose_ports((free, free, free))
    assert len(set(ports)) == 3


def test_other_ports_are_not_those_of_outgoing_connections():
    with socket.create_server((HOST, 0)) as server:
        for _ in range(20):
            with socket.create_connection(server.getsockname()) as connection:
                assert connection.getsockname()[1] not in OTHER_PORTS
