"""The whole way of a run over one channel, with a real guardian, real files and a real server."""

from __future__ import annotations

import sys

from tests.agent.client import alive, change, eventually, sha
from tests.agent.conftest import BANNER, WORKER, Node

SERVER = """
    import http.server, sys

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"fine")

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print("port", server.server_address[1])
    server.serve_forever()
"""


def test_a_run_from_lock_to_unlock_leaves_the_node_as_it_was(node: Node) -> None:
    before = node.files()
    client = node.client()
    taken = node.guard(client)
    assert alive(taken["guardian_pid"])
    assert taken["recovered"] == []

    facts = client.ask(
        "facts", python=sys.executable, cwd=str(node.site), env={}, package="toy",
        files=["banner.py", "sub/worker.py", "missing.py"], port=1, workdir=str(node.workdir), gpus="all",
    )  # fmt: skip
    assert facts["tree"]["path"] == str(node.package)
    assert facts["tree"]["version"] == "1.2.3"
    assert [file["sha256"] for file in facts["tree"]["files"]] == [sha(BANNER), sha(WORKER), None]
    assert facts["lock"]["state"] == "live"

    patched = BANNER.replace(b"original", b"patched")
    applied = client.ask("apply", set="spec_banner", files=[change(node.banner, BANNER, patched)])
    assert applied["changed"] == [str(node.banner)]
    assert node.banner.read_bytes() == patched

    started = node.start(client, SERVER)
    line = eventually(lambda: client.ask("server")["log_tail"], what="a log line")[0]
    port = int(line.split()[1])
    reply = client.ask("http", method="GET", port=port, path="/health", body=None, timeout_s=5)
    assert (reply["status"], reply["body"]) == (200, "fine")

    stopped = client.ask("stop", timeout_s=5, gpu_free_s=5, gpus="all")
    assert stopped["signal"] == 15
    assert stopped["survivors"] == []
    assert not alive(started["pid"])

    assert client.ask("restore") == {"restored": [str(node.banner)], "verified": True}
    done = client.ask("unwind", stop_s=5, reason="done")
    assert done["verified"]
    assert node.files() == before
    assert client.ask("status")["lock"] is None
    assert client.ask("status")["journals"] == []
    eventually(lambda: not alive(taken["guardian_pid"]), what="guardian gone")
    assert node.journal()[-1]["kind"] == "close"
    client.ask("clean", run_id="run-1", workdir=str(node.workdir))
    assert list(node.workdir.iterdir()) == []
