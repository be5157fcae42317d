"""A real nginx before several gateways, configured as docs/reliability.md says."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.gateway_process import free_port

CONFIG = """
daemon off;
worker_processes 1;
error_log {folder}/error.log warn;
pid {folder}/nginx.pid;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream gateways {{
{servers}
        keepalive 32;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://gateways;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_next_upstream error non_idempotent;
            proxy_connect_timeout 1s;
        }}
    }}
}}
"""


@contextmanager
def run_nginx(folder: Path, ports: Sequence[int]) -> Iterator[str]:
    """Start nginx before the gateways on these ports; yield its URL."""
    port = free_port()
    servers = "\n".join(f"        server 127.0.0.1:{one} max_fails=1 fail_timeout=1s;" for one in ports)
    (folder / "nginx.conf").write_text(CONFIG.format(folder=folder, port=port, servers=servers))
    command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    with subprocess.Popen(command) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url)
            yield url
        finally:
            process.terminate()


def _wait(url: str) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            httpx.get(f"{url}/health/live")
            return
        except httpx.TransportError:
            time.sleep(0.05)
    raise TimeoutError
