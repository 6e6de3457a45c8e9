"""Where a server of Ratchet listens, and whether it asks for a token."""

from __future__ import annotations

import ipaddress
import os
import socket

from training_core.errors import ConfigError


def token_for(host: str, variable: str) -> str | None:
    """Return the token in an environment variable; None lets everybody on this machine in.

    Raises:
        ConfigError: if there is none, and other machines reach the address.
    """
    token = os.environ.get(variable) or None
    if not (token or is_loopback(host)):
        raise ConfigError(
            f"{host} can be reached from other machines, so a token is needed; set the environment "
            f"variable {variable}, or use --host 127.0.0.1"
        )
    return token


def listen(host: str, port: int) -> socket.socket:
    """Listen at an address; port 0 takes a free one.

    Raises:
        ConfigError: if the port is taken, or there is no such address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen at {host}, port {port}: {error}; choose another --port or --host"
        ) from error


def address_of(host: str, port: int) -> str:
    """Return the address of a server."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
