"""What `outfit install` does: prints, applies, compares or removes what `outfitter.install` lists. Called by
`command.py`, which parses the arguments."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import yaml

from outfitter.api.kinds import Object
from outfitter.api.validate import names
from outfitter.cli.client import Client
from outfitter.errors import CommandFailed, OutfitterError
from outfitter.install import apply as application
from outfitter.install import diff as comparison
from outfitter.install import manifests
from outfitter.install import remove as removal
from outfitter.install.names import InstallOptions
from outfitter.inventory import config as configuration
from outfitter.store.clock import SystemClock

DIFFERENT, FAILED = 1, 2  # exit status of --diff, as of kubectl diff


def options(namespace: str | None, config: Path | None, **given: Any) -> InstallOptions:
    """The options of an installation. What the API server or a role would refuse half-way is refused here."""
    if namespace is not None:
        given["namespace"] = namespace
    _check(given)
    if config is not None:
        try:
            given["config"] = config.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CommandFailed(f"{config} cannot be read: {error}") from error
        configuration.parse(given["config"], str(config))
    return InstallOptions(**{name: value for name, value in given.items() if value is not None})


def _check(given: Mapping[str, Any]) -> None:
    """click.BadParameter: an option that no object could have."""
    for cause in names.label(given["namespace"], "") if "namespace" in given else ():
        raise click.BadParameter(cause.message, param_hint="--namespace")
    for name in ("image", "launcher_image"):
        image, flag = given.get(name), f"--{name.replace('_', '-')}"
        if image is not None and (not image or any(map(str.isspace, image))):
            raise click.BadParameter(f"{image!r} is no image; one is REGISTRY/NAME:TAG", param_hint=flag)
    if given.get("webhook_url") is not None and (why := _wrong_url(given["webhook_url"])):
        raise click.BadParameter(f"{given['webhook_url']}: {why}; one is https://webhook.example.com:8443",
                                 param_hint="--webhook-url")


def _wrong_url(text: str) -> str:
    """Why the API server cannot call a webhook there."""
    try:
        url = urlsplit(text)
        host, _ = url.hostname or "", url.port
    except ValueError as error:
        return str(error)
    if url.scheme != "https":
        return "it must begin with https://, as the API server calls webhooks over TLS"
    if url.username is not None or url.query or url.fragment or url.path.strip("/"):
        return "it has a host and a port, and nothing else"
    if any(names.subdomain(host, "")):
        return "its host must be a DNS name or an IPv4 address: the Service of the aggregated API has it as externalName"
    return ""


def print_yaml(chosen: InstallOptions) -> None:
    click.echo(as_yaml(manifests.objects(chosen)), nl=False)


def as_yaml(objects: list[Object]) -> str:
    plain = json.loads(json.dumps(objects))  # what two objects share would be written as an anchor
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times as fast, where libyaml is there
    text: str = yaml.dump_all(plain, Dumper=dumper, sort_keys=False, width=120, explicit_start=True)
    return text


async def apply(client: Client, chosen: InstallOptions, *, timeout: float) -> None:
    await application.apply(
        client.store, manifests.objects(chosen), chosen.namespace, click.echo, clock=SystemClock(), timeout=timeout
    )
    click.echo(f"outfitter is installed; its pods: outfit get pods -n {chosen.namespace}")


async def diff(client: Client, chosen: InstallOptions) -> None:
    different = False
    try:
        async for text in comparison.differences(client.store, manifests.objects(chosen)):
            different = True
            click.echo(text, nl=False)
    except OutfitterError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(FAILED)
    if different:
        sys.exit(DIFFERENT)


async def remove(client: Client, *, timeout: float, force: bool) -> None:
    await removal.remove(client.store, click.echo, clock=SystemClock(), timeout=timeout, force=force)
