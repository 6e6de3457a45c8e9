"""Ports of local services: the preferred ones, or others that no outgoing connection takes."""

from __future__ import annotations

import socket
import subprocess
import sys
from threading import Timer

import pytest

from flows.local_services import paths
from flows.local_services.paths import HOST, OTHER_PORTS, choose_ports, ports_again


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


def test_the_port_of_a_killed_service_is_waited_for():
    """Its main thread ends first; the kernel closes the port with the last one."""
    holding = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); "
    holding += "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    with subprocess.Popen(
        (sys.executable, "-c", holding), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        former = int(holder.stdout.readline())
        assert choose_ports((former,)) != (former,)
        Timer(0.5, holder.kill).start()
        assert ports_again((former,)) == (former,)


def test_a_port_that_another_process_has_taken_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(paths, "HELD_SECONDS", 0.3)
    with socket.create_server((HOST, 0)) as taken:
        (other,) = ports_again((taken.getsockname()[1],))
    assert other in OTHER_PORTS
