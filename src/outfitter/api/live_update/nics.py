"""NICs of a running VM: interfaces and networks, which are matched by name.

| change in the VM's template | effect |
| --- | --- |
| a new secondary bridge or SR-IOV interface, also by claim | copied; in place or by a migration |
| `state` absent on such an interface | copied; when the guest and the pod have released it, it is removed from VMI and VM |
| `state` absent, or the entry removed, before it was plugged | removed at once: the plug is cancelled |
| `state` up or down | copied; the node changes the link |
| another `multus.networkName` | copied if the VM can migrate, or was not plugged yet |
| a new interface by a claim that the VMI has under this name from elsewhere | waits for a restart |
| anything else: MAC address, model, binding, kind of network, a plugged NIC removed without `absent` | waits for a restart |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, interface_status, network_info
from outfitter.api.live_update import spec_fields
from outfitter.api.live_update.contribution import Contribution, MigrationNeed, Need, RunningVm
from outfitter.api.rejection import Rejection, RejectionCode

INTERFACES, NETWORKS = "domain.devices.interfaces", "networks"
ABSENT = "absent"
SWAPPED = "multus.networkName"


def state(interface: Mapping[str, Any]) -> str:
    return str(interface.get("state") or "")


def has_sriov(interface: Mapping[str, Any]) -> bool:
    return interface.get("sriov") is not None


def pluggable(interface: Mapping[str, Any], network: Mapping[str, Any] | None) -> bool:
    """Whether a NIC can be plugged into a running VM: a bridge or a VF on a secondary network."""
    if network is None or interface_status.is_primary(network):
        return False
    return has_sriov(interface) or all(  # an interface without a binding is a bridge
        interface.get(binding) is None for binding in network_info.BINDINGS if binding != "bridge")


class Nics:
    fields: tuple[str, ...] = (INTERFACES, NETWORKS)

    def compare(self, running: RunningVm) -> Contribution:
        return _Comparison(running).contribution()

    def migration(self, vmi: Object, pod: Mapping[str, Any]) -> MigrationNeed:
        """Every NIC is looked at: one that needs a migration at once is not delayed by one that may be plugged in place."""
        networks = _named(network_info.networks(vmi))
        statuses, reported = interface_status.network_status(pod), interface_status.entries(vmi)
        skipped = {wire.network for wire in network_info.wires_of_pod(pod).values() if wire.type == "none"}
        level: Need = "none"
        waiting: list[str] = []
        for interface in network_info.interfaces(vmi):
            network = networks.get(str(interface.get("name")))
            if network is None or interface_status.is_primary(network) or interface["name"] in skipped:
                continue  # a simulated VM does without a network that its host cannot provide
            if interface["name"] not in reported and attachment_pods.has_vf(pod, network):
                continue  # the pod has its VF: another one would have no more
            need, why = _need(vmi, interface, network, reported.get(interface["name"]), statuses)
            if need != "none":
                waiting.append(f'NIC "{interface["name"]}" {why}')
                level = "immediate" if "immediate" in (need, level) else "pending"
        return MigrationNeed(level, tuple(waiting))


def _need(
    vmi: Object, interface: Mapping[str, Any], network: Mapping[str, Any], entry: Mapping[str, Any] | None,
    statuses: Sequence[Mapping[str, Any]],
) -> tuple[Need, str]:
    by_claim = network.get("resourceClaim") is not None
    if state(interface) == ABSENT:
        have = interface_status.sources(entry or {})
        if entry is not None and interface_status.DOMAIN not in have and any(each in have for each in interface_status.IN_POD):
            return "pending", "is to be unplugged from the pod"
        return "none", ""
    if entry is None:
        if has_sriov(interface) or by_claim:
            return "immediate", "is a VF that is to be plugged"
        return "pending", "is to be plugged"
    attached = interface_status.attached_network(entry, statuses, vmi["metadata"]["namespace"])
    if not by_claim and attached is not None and attached != "/".join(network_info.attachment(vmi, network)):
        return "immediate", f"is to be moved from network {attached} to {'/'.join(network_info.attachment(vmi, network))}"
    return "none", ""


def _named(items: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {str(item.get("name")): item for item in items}


@dataclass(slots=True)
class _Comparison:
    """One evaluation: the lists of the VMI as they are to be, and what cannot be done live."""

    running: RunningVm
    restart: list[str] = field(default_factory=list)
    migration: list[str] = field(default_factory=list)
    claims: set[str] = field(default_factory=set)
    refused: dict[str, Rejection] = field(default_factory=dict)

    def contribution(self) -> Contribution:
        running = self.running
        wanted, have = running.wanted, running.vmi["spec"]
        cards, networks = _named(spec_fields.get(wanted, INTERFACES) or ()), _named(wanted.get(NETWORKS) or ())
        own_cards, own_networks = _named(spec_fields.get(have, INTERFACES) or ()), _named(have.get(NETWORKS) or ())
        reported = interface_status.entries(running.vmi)
        is_cards: dict[str, Mapping[str, Any]] = {}
        is_networks = dict(own_networks)
        for name, own in own_cards.items():
            card = self._kept(name, own, cards, reported)
            if state(card) == ABSENT and running.running and name not in reported:
                continue  # neither the guest nor the pod has it
            is_cards[name] = card
            if name in networks and name in own_networks and ABSENT not in (state(own), state(cards.get(name) or {})):
                is_networks[name] = self._network(name, networks[name], own_networks[name], reported)
        for name, card in cards.items():
            if name in own_cards or state(card) == ABSENT:
                continue
            path, claim = f"{INTERFACES}[{name}]", ((networks.get(name) or {}).get("resourceClaim") or {}).get("claimName")
            if not pluggable(card, networks.get(name)) or not running.live:
                self.restart.append(path)
            elif why := running.other_claim(claim):
                self.restart.append(path)
                self.refused[path] = Rejection.of(RejectionCode.NIC_NOT_PLUGGED, message=f"{name}: {why}")
            elif running.running:
                is_cards[name], is_networks[name] = card, networks[name]
                self.migration.append(path)
                if claim:
                    self.claims.add(str(claim))
        return Contribution(self._live(is_cards, is_networks), tuple(self.migration), tuple(self.restart),
                            frozenset(self.claims), template=self._left_out(cards, networks, own_cards, reported),
                            refused=self.refused)

    def _kept(
        self, name: str, own: Mapping[str, Any], cards: Mapping[str, Mapping[str, Any]],
        reported: Mapping[str, Mapping[str, Any]],
    ) -> Mapping[str, Any]:
        """An interface of the VMI, with the state that the VM wants."""
        running, path = self.running, f"{INTERFACES}[{name}]"
        if state(own) == ABSENT:
            return own  # what is asked now counts once it is gone
        card = cards.get(name)
        if card is None:
            if not cards and not self._started_with(path):
                return own  # filled in by admission
            plugged = interface_status.DOMAIN in interface_status.sources(reported.get(name) or {})
            if running.live and running.running and not plugged and self._unpluggable(name, own, reported):
                return {**own, "state": ABSENT}  # the guest never had it: the plug is cancelled
            self.restart.append(path)
            return own
        self.restart += spec_fields.changed(_comparable(card), _comparable(own), path, started_with=running.started_with)
        if state(card) == state(own):
            return own
        if not running.live or (state(card) == ABSENT and not self._unpluggable(name, own, reported)):
            self.restart.append(f"{path}.state")
            return own
        if not running.running:
            return own
        self.migration += [path] if state(card) == ABSENT else []
        rest = {key: value for key, value in own.items() if key != "state"}
        return {**rest, "state": card["state"]} if card.get("state") else rest

    def _unpluggable(self, name: str, own: Mapping[str, Any], reported: Mapping[str, Any]) -> bool:
        """Not while the pod's interfaces are counted: the numbers of the others would shift."""
        if not pluggable(own, _named(network_info.networks(self.running.vmi)).get(name)):
            return False
        return name not in reported or not interface_status.counts_interfaces(self.running.vmi, self.running.pod)

    def _network(
        self, name: str, network: Mapping[str, Any], own: Mapping[str, Any], reported: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        running, path = self.running, f"{NETWORKS}[{name}]"
        differences = list(spec_fields.changed(network, own, path, started_with=running.started_with))
        swapped = f"{path}.{SWAPPED}"
        if swapped in differences and running.live and not interface_status.is_primary(network) and (
                running.migratable or name not in reported or self._same_definition(network, own)):
            differences.remove(swapped)
            if running.running:
                self.migration.append(swapped)
                own = {**own, "multus": {**own["multus"], "networkName": network["multus"]["networkName"]}}
        self.restart += differences
        return own

    def _same_definition(self, network: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
        """vlan10 and lab/vlan10 are one in namespace lab."""
        vmi = self.running.vmi
        return network_info.attachment(vmi, network) == network_info.attachment(vmi, own)

    def _started_with(self, path: str) -> bool:
        return any(field_.startswith(path) for field_ in self.running.started_with or ())

    def _live(self, cards: Mapping[str, Mapping[str, Any]], networks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The lists that differ from those of the VMI; networks in the order of the interfaces once one comes or goes."""
        have = self.running.vmi["spec"]
        had, had_networks = spec_fields.get(have, INTERFACES) or [], have.get(NETWORKS) or []
        listed = [dict(card) for card in cards.values()]
        if list(cards) == [card["name"] for card in had]:
            ordered = [dict(networks[network["name"]]) for network in had_networks]
        else:
            ordered = [dict(networks[name]) for name in cards if name in networks]
        out: dict[str, Any] = {} if listed == had else {INTERFACES: listed}
        return out if ordered == had_networks else {**out, NETWORKS: ordered}

    def _left_out(
        self, cards: Mapping[str, Mapping[str, Any]], networks: Mapping[str, Mapping[str, Any]],
        own_cards: Mapping[str, Mapping[str, Any]], reported: Mapping[str, Any],
    ) -> dict[str, Any]:
        gone = [name for name, card in cards.items()
                if state(card) == ABSENT and name not in own_cards and name not in reported]
        return without(cards.values(), networks.values(), gone)


def without(
    interfaces: Iterable[Mapping[str, Any]], networks: Iterable[Mapping[str, Any]], gone: Sequence[str]
) -> dict[str, Any]:
    """Both lists without these NICs; nothing if there are none."""
    if not gone:
        return {}
    return {INTERFACES: [dict(each) for each in interfaces if each.get("name") not in gone],
            NETWORKS: [dict(each) for each in networks if each.get("name") not in gone]}


def without_absent(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Interfaces and networks of a template without absent NICs, for a VM that does not run; nothing if there are none."""
    cards = spec_fields.get(spec, INTERFACES) or ()
    return without(cards, spec.get(NETWORKS) or (), [str(each.get("name")) for each in cards if state(each) == ABSENT])


def _comparable(interface: Mapping[str, Any]) -> dict[str, Any]:
    """Without the state, which is compared by itself; MAC addresses are spelled in several ways."""
    out = {key: value for key, value in interface.items() if key != "state"}
    if mac := network_info.specified_mac(interface):
        out["macAddress"] = mac
    return out
