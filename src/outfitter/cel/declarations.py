"""Declarations for the checker: functions and operators with their argument and result types, and the fields of `device`.

One line per overload: its id, then `[target .] name(arguments) : result`. Capital letters are type parameters. To add a
function: a line here, its Python in `library`, and its cost in `cost_table` and `runtime_cost` unless that is 1."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from outfitter.cel import types
from outfitter.cel.types import Type


@dataclass(frozen=True, slots=True)
class CelFeatures:
    """Feature gates that change the language. Stored expressions are always read with all of them enabled."""

    consumable_capacity: bool = True  # device.allowMultipleAllocations
    list_attributes: bool = True  # attributes may be lists: they are dyn instead of any, and there is includes()


NEWEST = CelFeatures()


@dataclass(frozen=True, slots=True)
class Overload:
    id: str
    member: bool  # called as target.name(...); the target is the first argument
    args: tuple[Type, ...]
    result: Type
    params: tuple[str, ...]  # the type parameters in it


Functions = Mapping[str, tuple[Overload, ...]]

_COMPARABLE = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
_NUMBERS = ("int", "uint", "double")
_CALENDAR = ("getFullYear", "getMonth", "getDayOfYear", "getDayOfMonth", "getDate", "getDayOfWeek")
_CLOCK = ("getHours", "getMinutes", "getSeconds", "getMilliseconds")
FORMATS = (
    *("dns1123Label", "dns1123Subdomain", "dns1035Label", "qualifiedName", "dns1123LabelPrefix", "dns1123SubdomainPrefix"),
    *("dns1035LabelPrefix", "labelValue", "uri", "uuid", "byte", "date", "datetime"),
)

_LANGUAGE = """
conditional         _?_:_(bool, A, A) : A
logical_and         _&&_(bool, bool) : bool
logical_or          _||_(bool, bool) : bool
logical_not         !_(bool) : bool
not_strictly_false  @not_strictly_false(bool) : bool
equals              _==_(A, A) : bool
not_equals          _!=_(A, A) : bool
add_bytes           _+_(bytes, bytes) : bytes
add_double          _+_(double, double) : double
add_duration_duration   _+_(duration, duration) : duration
add_duration_timestamp  _+_(duration, timestamp) : timestamp
add_timestamp_duration  _+_(timestamp, duration) : timestamp
add_int64           _+_(int, int) : int
add_list            _+_(list(A), list(A)) : list(A)
add_string          _+_(string, string) : string
add_uint64          _+_(uint, uint) : uint
divide_double       _/_(double, double) : double
divide_int64        _/_(int, int) : int
divide_uint64       _/_(uint, uint) : uint
modulo_int64        _%_(int, int) : int
modulo_uint64       _%_(uint, uint) : uint
multiply_double     _*_(double, double) : double
multiply_int64      _*_(int, int) : int
multiply_uint64     _*_(uint, uint) : uint
negate_double       -_(double) : double
negate_int64        -_(int) : int
subtract_double     _-_(double, double) : double
subtract_duration_duration    _-_(duration, duration) : duration
subtract_int64      _-_(int, int) : int
subtract_timestamp_duration   _-_(timestamp, duration) : timestamp
subtract_timestamp_timestamp  _-_(timestamp, timestamp) : duration
subtract_uint64     _-_(uint, uint) : uint
index_list          _[_](list(A), int) : A
index_map           _[_](map(A, B), A) : B
optional_list_index_int   _[_](optional(list(V)), int) : optional(V)
optional_map_index_value  _[_](optional(map(K, V)), K) : optional(V)
in_list             @in(A, list(A)) : bool
in_map              @in(A, map(A, B)) : bool
size_bytes          size(bytes) : int
size_list           size(list(A)) : int
size_map            size(map(A, B)) : int
size_string         size(string) : int
bytes_size          bytes . size() : int
list_size           list(A) . size() : int
map_size            map(A, B) . size() : int
string_size         string . size() : int
type                type(A) : type(A)
to_dyn              dyn(A) : dyn
bool_to_bool        bool(bool) : bool
string_to_bool      bool(string) : bool
bytes_to_bytes      bytes(bytes) : bytes
string_to_bytes     bytes(string) : bytes
double_to_double    double(double) : double
int64_to_double     double(int) : double
string_to_double    double(string) : double
uint64_to_double    double(uint) : double
duration_to_duration  duration(duration) : duration
string_to_duration    duration(string) : duration
int64_to_int64      int(int) : int
double_to_int64     int(double) : int
duration_to_int64   int(duration) : int
string_to_int64     int(string) : int
timestamp_to_int64  int(timestamp) : int
uint64_to_int64     int(uint) : int
string_to_string    string(string) : string
bool_to_string      string(bool) : string
bytes_to_string     string(bytes) : string
double_to_string    string(double) : string
duration_to_string  string(duration) : string
int64_to_string     string(int) : string
timestamp_to_string string(timestamp) : string
uint64_to_string    string(uint) : string
ip_to_string        string(ip) : string
cidr_to_string      string(cidr) : string
timestamp_to_timestamp  timestamp(timestamp) : timestamp
int64_to_timestamp      timestamp(int) : timestamp
string_to_timestamp     timestamp(string) : timestamp
uint64_to_uint64    uint(uint) : uint
double_to_uint64    uint(double) : uint
int64_to_uint64     uint(int) : uint
string_to_uint64    uint(string) : uint
contains_string     string . contains(string) : bool
ends_with_string    string . endsWith(string) : bool
starts_with_string  string . startsWith(string) : bool
matches             matches(string, string) : bool
matches_string      string . matches(string) : bool
cel_@mapInsert_map_map        cel.@mapInsert(map(K, V), map(K, V)) : map(K, V)
cel_@mapInsert_map_key_value  cel.@mapInsert(map(K, V), K, V) : map(K, V)
"""

_OPTIONALS = """
optional_of              optional.of(V) : optional(V)
optional_ofNonZeroValue  optional.ofNonZeroValue(V) : optional(V)
optional_none            optional.none() : optional(V)
optional_value           optional(V) . value() : V
optional_hasValue        optional(V) . hasValue() : bool
optional_or_optional     optional(V) . or(optional(V)) : optional(V)
optional_orValue_value   optional(V) . orValue(V) : V
list_optindex_optional_int           _[?_](list(V), int) : optional(V)
optional_list_optindex_optional_int  _[?_](optional(list(V)), int) : optional(V)
map_optindex_optional_value          _[?_](map(K, V), K) : optional(V)
optional_map_optindex_optional_value _[?_](optional(map(K, V)), K) : optional(V)
list_first               list(V) . first() : optional(V)
list_last                list(V) . last() : optional(V)
optional_unwrap          optional.unwrap(list(optional(V))) : list(V)
optional_unwrapOpt       list(optional(V)) . unwrapOpt() : list(V)
"""

_STRINGS = """
string_char_at_int            string . charAt(int) : string
string_index_of_string        string . indexOf(string) : int
string_index_of_string_int    string . indexOf(string, int) : int
string_last_index_of_string      string . lastIndexOf(string) : int
string_last_index_of_string_int  string . lastIndexOf(string, int) : int
string_lower_ascii            string . lowerAscii() : string
string_upper_ascii            string . upperAscii() : string
string_replace_string_string      string . replace(string, string) : string
string_replace_string_string_int  string . replace(string, string, int) : string
string_split_string           string . split(string) : list(string)
string_split_string_int       string . split(string, int) : list(string)
string_substring_int          string . substring(int) : string
string_substring_int_int      string . substring(int, int) : string
string_trim                   string . trim() : string
string_format                 string . format(list(dyn)) : string
strings_quote                 strings.quote(string) : string
list_join                     list(string) . join() : string
list_join_string              list(string) . join(string) : string
string_find_string            string . find(string) : string
string_find_all_string        string . findAll(string) : list(string)
string_find_all_string_int    string . findAll(string, int) : list(string)
"""

_LISTS = """
list_a_index_of_int       list(A) . indexOf(A) : int
list_a_last_index_of_int  list(A) . lastIndexOf(A) : int
list_slice                list(T) . slice(int, int) : list(T)
list_flatten              list(list(T)) . flatten() : list(T)
list_flatten_int          list(dyn) . flatten(int) : list(dyn)
lists_range               lists.range(int) : list(int)
list_reverse              list(T) . reverse() : list(T)
list_distinct             list(T) . distinct() : list(T)
list_sets_contains_list   sets.contains(list(T), list(T)) : bool
list_sets_equivalent_list sets.equivalent(list(T), list(T)) : bool
list_sets_intersects_list sets.intersects(list(T), list(T)) : bool
"""

_KUBERNETES = """
string_to_quantity        quantity(string) : quantity
is_quantity_string        isQuantity(string) : bool
quantity_sign             sign(quantity) : int
quantity_is_greater_than  quantity . isGreaterThan(quantity) : bool
semver_is_greater_than    semver . isGreaterThan(semver) : bool
quantity_is_less_than     quantity . isLessThan(quantity) : bool
semver_is_less_than       semver . isLessThan(semver) : bool
quantity_compare_to       quantity . compareTo(quantity) : int
semver_compare_to         semver . compareTo(semver) : int
quantity_get_float        quantity . asApproximateFloat() : double
quantity_get_int          quantity . asInteger() : int
quantity_is_integer       quantity . isInteger() : bool
quantity_add              quantity . add(quantity) : quantity
quantity_add_int          quantity . add(int) : quantity
quantity_sub              quantity . sub(quantity) : quantity
quantity_sub_int          quantity . sub(int) : quantity
string_to_semver          semver(string) : semver
string_bool_to_semver     semver(string, bool) : semver
is_semver_string          isSemver(string) : bool
is_semver_string_bool     isSemver(string, bool) : bool
semver_major              semver . major() : int
semver_minor              semver . minor() : int
semver_patch              semver . patch() : int
string_to_ip              ip(string) : ip
cidr_ip                   cidr . ip() : ip
is_ip                     isIP(string) : bool
ip_is_canonical           ip.isCanonical(string) : bool
ip_family                 ip . family() : int
ip_is_unspecified         ip . isUnspecified() : bool
ip_is_loopback            ip . isLoopback() : bool
ip_is_link_local_multicast  ip . isLinkLocalMulticast() : bool
ip_is_link_local_unicast    ip . isLinkLocalUnicast() : bool
ip_is_global_unicast        ip . isGlobalUnicast() : bool
string_to_cidr            cidr(string) : cidr
is_cidr                   isCIDR(string) : bool
cidr_contains_ip_string   cidr . containsIP(string) : bool
cidr_contains_ip_ip       cidr . containsIP(ip) : bool
cidr_contains_cidr_string cidr . containsCIDR(string) : bool
cidr_contains_cidr        cidr . containsCIDR(cidr) : bool
cidr_prefix_length        cidr . prefixLength() : int
cidr_masked               cidr . masked() : cidr
string_to_url             url(string) : url
is_url_string             isURL(string) : bool
url_get_scheme            url . getScheme() : string
url_get_host              url . getHost() : string
url_get_hostname          url . getHostname() : string
url_get_port              url . getPort() : string
url_get_escaped_path      url . getEscapedPath() : string
url_get_query             url . getQuery() : map(string, list(string))
format-named              format.named(string) : optional(format)
format-validate           format . validate(string) : optional(list(string))
"""

_NAMED = {
    "bool": types.BOOL, "int": types.INT, "uint": types.UINT, "double": types.DOUBLE, "string": types.STRING,
    "bytes": types.BYTES, "null_type": types.NULL, "dyn": types.DYN, "duration": types.DURATION,
    "timestamp": types.TIMESTAMP, "quantity": types.QUANTITY, "semver": types.SEMVER, "ip": types.IP, "cidr": types.CIDR,
    "url": types.URL, "format": types.FORMAT,
}  # fmt: skip
_LINE = re.compile(r"(\S+)\s+(?:(\S.*?) \. )?(\S+?)\((.*)\) : (\S.*)")

# Names that stand for a type: type(x) == string.
TYPE_NAMES: Mapping[str, Type] = {
    **{name: _NAMED[name] for name in ("bool", "int", "uint", "double", "string", "bytes", "null_type")},
    "list": types.list_of(types.DYN),
    "map": types.map_of(types.DYN, types.DYN),
    "type": types.TYPE,
    "optional_type": types.optional_of(types.param("V")),
    "google.protobuf.Duration": types.DURATION,
    "google.protobuf.Timestamp": types.TIMESTAMP,
    "net.IP": types.IP,
    "net.CIDR": types.CIDR,
}


def _generated() -> Iterator[str]:
    """The overloads that come in families."""
    pairs = [(one, one) for one in _COMPARABLE] + list(itertools.permutations(_NUMBERS, 2))
    for name, sign in (("less", "<"), ("less_equals", "<="), ("greater", ">"), ("greater_equals", ">=")):
        for left, right in pairs:
            yield f"{name}_{left}{'' if left == right else f'_{right}'} _{sign}_({left}, {right}) : bool"
    for name in _COMPARABLE:
        yield f"list_{name}_is_sorted_bool list({name}) . isSorted() : bool"
        yield f"list_{name}_max_{name} list({name}) . max() : {name}"
        yield f"list_{name}_min_{name} list({name}) . min() : {name}"
        yield f"list_{name}_sort list({name}) . sort() : list({name})"
        yield f"list_{name}_sortByAssociatedKeys list(T) . @sortByAssociatedKeys(list({name})) : list(T)"
    for name in (*_NUMBERS, "duration"):
        yield f"list_{name}_sum_{name} list({name}) . sum() : {name}"
    for name in (*_CALENDAR, *_CLOCK):
        yield f"timestamp_{name} timestamp . {name}() : int"
        yield f"timestamp_{name}_with_tz timestamp . {name}(string) : int"
    for name in _CLOCK:
        yield f"duration_{name} duration . {name}() : int"
    for name in FORMATS:
        yield f"format.{name} format.{name}() : format"


def _type(text: str) -> Type:
    name, bracket, rest = text.strip().partition("(")
    inner = tuple(map(_type, _split(rest[:-1]))) if bracket else ()
    match name:
        case "list":
            return types.list_of(*inner)
        case "map":
            return types.map_of(*inner)
        case "optional":
            return types.optional_of(*inner)
        case "type":
            return types.type_of(*inner)
    return types.param(name) if len(name) == 1 else _NAMED[name]


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]


def _read(line: str) -> tuple[str, Overload]:
    match = _LINE.fullmatch(line)
    assert match is not None, line
    name, target, args, result = match[3], match[2], _split(match[4]), match[5]
    taken = tuple(map(_type, ([target] if target else []) + args))
    letters = tuple(sorted(set(re.findall(r"\b[A-Z]\b", f"{target} {args} {result}"))))
    return name, Overload(match[1], bool(target), taken, _type(result), letters)


@lru_cache(maxsize=4)
def functions(features: CelFeatures) -> Functions:
    """All functions with these features."""
    lines = [*_LANGUAGE.splitlines(), *_OPTIONALS.splitlines(), *_STRINGS.splitlines(), *_LISTS.splitlines()]
    lines += [*_KUBERNETES.splitlines(), *_generated()]
    if features.list_attributes:
        lines.append("list_includes_dyn_dyn dyn . includes(dyn) : bool")
    overloads: dict[str, tuple[Overload, ...]] = {}
    for line in filter(None, lines):
        name, overload = _read(line)
        overloads[name] = (*overloads.get(name, ()), overload)
    return overloads


@lru_cache(maxsize=4)
def device_fields(features: CelFeatures) -> Mapping[str, Type]:
    """The fields of `device` and their types."""
    attribute = types.DYN if features.list_attributes else types.ANY
    fields = {
        "driver": types.STRING,
        "attributes": types.map_of(types.STRING, types.map_of(types.STRING, attribute)),
        "capacity": types.map_of(types.STRING, types.map_of(types.STRING, types.QUANTITY)),
    }
    if features.consumable_capacity:
        fields["allowMultipleAllocations"] = types.BOOL
    return fields
