"""`outfit up` with a host that must not start: the others run, and with one host it is an error."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.process import EXAMPLE, ForkedUp, typed, until

HOSTS = "hosts:\n" + "".join(f"""
- {{name: {name}, pci: [{{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice,
    vfs: {{count: 1, product: 1889}}}}]}}""" for name in ("elm", "oak"))
CLASS = "report_in_placement: true\ndevice_spec: [{{product_id: 1889, resource_class: {}}}]\n"


def test_one_host_is_refused_alone(tmp_path: Path) -> None:
    hosts, settings = tmp_path / "hosts.yaml", tmp_path / "settings.yaml"
    hosts.write_text(HOSTS)
    settings.write_text(CLASS.format("vf"))
    with ForkedUp(tmp_path / "data", "--config", str(settings), simulate=str(hosts)) as up:
        up.ok("apply", "-f", str(EXAMPLE / "1-class.yaml"), "-f", str(EXAMPLE / "2-blue.yaml"))
        until(lambda: up.phase("blue") == "Running", "blue runs")
        up.stop()
        settings.write_text(CLASS.format("fast"))
        up.start()
        why = "host elm does not start: inventory of CUSTOM_VF on resource provider elm_0000:3B:00.0 is in use by vmi/blue"
        assert up.printed("refused").startswith(why)
        assert why in up.log()
        rows = {row.split()[0]: row.split()[1] for row in up.ok("get", "nodes").splitlines()[1:]}
        assert rows == {"elm": "NotReady,StartRefused", "oak": "Ready"}
        assert why in up.ok("describe", "node", "elm")
        up.ok("apply", "-f", str(EXAMPLE / "3-green.yaml"))
        until(lambda: up.phase("green") == "Running", "green runs on the other host")
        up.ok("delete", "vmi", "blue")
        until(lambda: "NotReady" not in up.ok("get", "nodes"), "elm starts")
        up.stop()
    hosts.write_text(HOSTS[:HOSTS.index("\n- {name: oak")])
    settings.write_text("report_in_placement: false\ndevice_spec: [{product_id: 1889}]\n")
    done = typed("up", "--data", str(up.data), "--port", "0", "--simulate", str(hosts), "--config", str(settings))
    assert (done.code, done.out) == (1, "")
    assert "host elm does not start: report_in_placement is off" in done.err
