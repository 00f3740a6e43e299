"""Contract of tasks.formats.documents.zip_package: members of a zip file, within limits whatever it states."""

import io
import zipfile

import pytest

from tasks.formats.documents.zip_package import PackageError, ZipPackage, parse_xml


def packed(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as package:
        for name, data in members.items():
            package.writestr(name, data)
    return content.getvalue()


def reason(data: bytes) -> str:
    with pytest.raises(PackageError) as refused:
        ZipPackage(data, 10, 1_000).read("a")
    return refused.value.reason


def test_a_member_is_found_in_any_case_and_under_a_path_with_backslashes() -> None:
    package = ZipPackage(packed({"Text\\A.xhtml": b"one"}), 10, 1_000)
    assert (package.names, package.read("text/a.xhtml"), package.read("b")) == (("Text/A.xhtml",), b"one", None)


def test_all_members_together_are_unpacked_up_to_the_limit() -> None:
    package = ZipPackage(packed({"a": b"x" * 600, "b": b"x" * 600}), 10, 1_000)
    assert len(package.read("a") or b"") == 600
    with pytest.raises(PackageError, match="too_large"):
        package.read("b")


def test_a_bomb_costs_the_limit_and_no_more() -> None:
    assert reason(packed({"a": bytes(50_000_000)})) == "too_large"
    assert reason(packed({"a": bytes(50_000_000)}, zipfile.ZIP_BZIP2)) == "damaged"  # its unpacking has no limit


def test_a_directory_with_too_many_members_is_not_read() -> None:
    assert reason(packed({str(number): b"" for number in range(11)})) == "too_large"


def test_members_that_share_bytes_are_damage() -> None:
    data = bytearray(packed({"a": b"x" * 500, "b": b"y" * 500}, zipfile.ZIP_STORED))
    first, second = (index for index in range(len(data)) if data[index : index + 4] == b"PK\x01\x02")
    data[first + 20 : first + 28] = (900).to_bytes(4, "little") * 2
    data[second + 20 : second + 28] = (900).to_bytes(4, "little") * 2
    assert reason(bytes(data)) == "damaged"


def test_damage_and_passwords_have_reasons() -> None:
    data = packed({"a": b"text " * 100})
    changed = bytearray(data)
    changed[40] ^= 0xFF
    locked = bytearray(data)
    locked[locked.index(b"PK\x01\x02") + 8] |= 1
    assert [reason(bytes(one)) for one in (b"no zip", data[:-30], changed, locked)] == [
        *("damaged", "damaged", "damaged"),
        "encrypted",
    ]


def test_entities_of_xml_are_not_expanded() -> None:
    bomb = b'<!DOCTYPE a [<!ENTITY x "boom"><!ENTITY f SYSTEM "file:///etc/passwd">]><a>&x;&f;<b>left</b></a>'
    assert "".join(parse_xml(bomb).itertext()) == "&x;&f;left"
