"""Requests that are to run as another user are refused: ignored, they would run with the rights of their sender."""

from __future__ import annotations

import pytest

from tests.apiserver.asgi import CONFIG_MAPS, Client, config_map

IMPERSONATED = {
    "a user": ({"Impersonate-User": "bob"}, 'users "bob" is forbidden', {"name": "bob", "kind": "users"}),
    "a group": ({"Impersonate-Group": "people"}, 'groups "people" is forbidden', {"name": "people", "kind": "groups"}),
    "a uid": ({"Impersonate-Uid": "1"}, 'uids "1" is forbidden', {"name": "1", "kind": "uids"}),
    "something else": ({"Impersonate-Extra-Scopes": "view"}, 'userextras "view" is forbidden',
                       {"name": "view", "kind": "userextras"}),
    "all of them": ({"Impersonate-Extra-x": "a", "Impersonate-Group": "b", "Impersonate-Uid": "c", "Impersonate-User": "bob"},
                    'users "bob" is forbidden', {"name": "bob", "kind": "users"}),
}


@pytest.mark.parametrize("name", IMPERSONATED)
async def test_impersonation_is_refused_with_the_reason(client: Client, name: str) -> None:
    headers, says, details = IMPERSONATED[name]
    for call in (client.post(CONFIG_MAPS, config_map("a"), headers=headers), client.get(CONFIG_MAPS, headers=headers)):
        reply = await call
        assert (reply.status, reply.json["reason"]) == (403, "Forbidden")
        assert reply.json["message"].startswith(says)
        assert "impersonation is not served" in reply.json["message"]
    for path in ("/apis", "/version"):  # of these kubectl shows a text, and no Status
        reply = await client.get(path, headers=headers)
        assert (reply.status, reply.header("content-type")) == (403, ["text/plain"])
        assert reply.data.decode().startswith(says)
    reply = await client.get(CONFIG_MAPS, headers=headers)
    assert reply.json["details"] == details
    assert (await client.get(CONFIG_MAPS)).json["items"] == []


async def test_an_unknown_client_does_not_learn_about_impersonation(client: Client) -> None:
    client.token = "x"
    assert (await client.get(CONFIG_MAPS, headers={"Impersonate-User": "bob"})).status == 401
