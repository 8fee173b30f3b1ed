"""The settings of the roles: one table, from which flags, variables, keys of the configuration file and docs come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outfitter.errors import Invalid
from outfitter.roles import ROLES, settings
from outfitter.roles.process import load
from outfitter.roles.settings import ALL, TABLE, Settings
from tests.e2e.process import ROOT, typed


def resolved(role: str = "controller", *, flags: dict[str, str] | None = None, env: dict[str, str] | None = None,
             file: dict[str, str] | None = None) -> Settings:
    return settings.resolve(role, flags or {}, env or {}, file, "config.yaml")


def test_a_flag_wins_over_the_variable_that_over_the_file_and_that_over_the_default() -> None:
    flag, env, file = {"log_level": "debug"}, {"OUTFITTER_LOG_LEVEL": "warning"}, {"log_level": "error"}
    assert resolved(flags=flag, env=env, file=file).log_level == "debug"
    assert resolved(env=env, file=file).log_level == "warning"
    assert resolved(file=file).log_level == "error"
    assert resolved().log_level == "info"


@pytest.mark.parametrize(("name", "text", "value"), [
    ("lease_duration", "20", 20.0), ("lease_duration", "1m", 60.0), ("lease_duration", "1500ms", 1.5),
    ("leader_elect", "no", False), ("leader_elect", "True", True), ("health_address", ":8080", ("", 8080)),
    ("health_address", "[::1]:0", ("::1", 0)), ("config", "a.yaml", Path("a.yaml")),
])
def test_a_text_is_read_as_its_type(name: str, text: str, value: Any) -> None:
    assert getattr(resolved(env={f"OUTFITTER_{name.upper()}": text}), name) == value


@pytest.mark.parametrize(("name", "text"), [
    ("lease_duration", "soon"), ("lease_duration", "0s"), ("lease_duration", "25h"), ("leader_elect", "maybe"),
    ("log_format", "xml"), ("health_address", "8080"), ("health_address", "127.0.0.1:99999"), ("health_address", "::1:80"),
    ("namespace", "Not A Name"),
])
def test_a_wrong_value_is_reported_with_the_setting_and_the_value(name: str, text: str) -> None:
    variable = f"OUTFITTER_{name.upper()}"
    for flags, env, file, place in (({}, {variable: text}, {}, variable), ({}, {}, {name: text}, f"config.yaml: roles.{name}"),
                                    ({name: text}, {}, {}, "--" + name.replace("_", "-"))):
        with pytest.raises(Invalid) as error:
            resolved(flags=flags, env=env, file=file)
        assert [cause.field for cause in error.value.causes] == [place]
        assert repr(text) in error.value.message


def test_all_wrong_settings_are_reported_at_once() -> None:
    with pytest.raises(Invalid) as error:
        resolved(flags={"log_format": ""}, env={"OUTFITTER_LOG_LEVEL": "loud"}, file={"leese": "1s"})
    assert {cause.field for cause in error.value.causes} == {"--log-format", "OUTFITTER_LOG_LEVEL", "config.yaml: roles.leese"}


def test_an_empty_variable_is_not_set() -> None:
    assert resolved(env={"OUTFITTER_LOG_LEVEL": ""}).log_level == "info"


def test_settings_of_other_roles_in_the_shared_file_are_known_and_not_used() -> None:
    assert resolved("node", file={"lease_duration": "60s"}).lease_duration == Settings().lease_duration


def test_times_of_the_lease_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="renew_deadline"):
        load(ROLES["controller"], {"lease_duration": "5s"}, {})


def test_the_section_of_the_configuration_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("roles: {log_format: json, simulate: 2x4}\nsriov: []\n")
    found, config = load(ROLES["node"], {}, {"OUTFITTER_CONFIG": str(file)})
    assert (found.log_format, found.simulate, config.roles["log_format"]) == ("json", "2x4", "json")


def test_what_is_typed_wrong_is_a_wrong_command_line() -> None:
    shown = typed("controller", "--lease-duration", "soon")
    assert (shown.code, "--lease-duration: 'soon'" in shown.err) == (2, True)


@pytest.mark.parametrize(("file", "message"), [
    ("roles: [a]", "roles: must be a mapping"), ("roles: {log_format: [a]}", "roles.log_format: must be one value"),
    ("roles: {log_level: loud}", "roles.log_level: 'loud'"),
])
def test_a_wrong_file_is_one_clear_error(tmp_path: Path, file: str, message: str) -> None:
    (tmp_path / "config.yaml").write_text(file)
    shown = typed("node", "--config", str(tmp_path / "config.yaml"))
    assert (shown.code, message in shown.err) == (1, True), shown


def test_misspelt_variables_are_found_and_those_of_a_service_are_not() -> None:
    environment = {"OUTFITTER_LEASE_DURATON": "1", "OUTFITTER_LEASE_DURATION": "1", "OUTFITTER_WEBHOOK_PORT": "tcp://10.0.0.1"}
    assert settings.unknown_variables(environment) == ["OUTFITTER_LEASE_DURATON"]


def test_no_setting_has_the_name_of_a_variable_that_kubernetes_sets() -> None:
    assert [setting.name for setting in TABLE if setting.name.startswith("webhook_")] == []


def test_the_docs_show_the_table() -> None:
    lines = ["| flag | variable | key in section `roles` | default | meaning | roles |", "| --- " * 6 + "|"]
    for setting in TABLE:
        metavar = setting.type.metavar.replace("|", "\\|")
        flag = f"{setting.flag}`, `--no-{setting.flag[2:]}" if setting.type.switch else f"{setting.flag} {metavar}"
        roles = "all" if setting.roles == ALL else ", ".join(setting.roles)
        lines.append(f"| `{flag}` | `{setting.variable}` | {f'`{setting.name}`' if setting.in_file else '-'} | "
                     f"{setting.default} | {setting.meaning} | {roles} |")
    assert "\n".join(lines) in (ROOT / "docs" / "roles.md").read_text(), "the table is:\n" + "\n".join(lines)
