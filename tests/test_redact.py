"""Secrets out of everything that is written or shown."""

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.redact import Redactor

TOKEN = 'hf_s3cr3t/with+odd=chars"and\\slash'
KEY = "-----BEGIN KEY-----\nfirst-line-of-key\nsecond-line-of-key\n-----END KEY-----"


def test_a_value_is_replaced_by_the_name_of_its_reference():
    assert Redactor({"HF_TOKEN": "hf_abcdef"})("token=hf_abcdef;") == "token=[redacted:HF_TOKEN];"


@pytest.mark.parametrize(
    "spell", [str, repr, json.dumps, lambda text: quote(text, safe="")], ids=["plain", "repr", "json", "url"]
)
def test_every_spelling_of_a_value_is_found(spell):
    shown = Redactor({"HF_TOKEN": TOKEN})(f"server_args: {spell(TOKEN)} end")
    assert "s3cr3t" not in shown
    assert shown.startswith("server_args: ")
    assert shown.endswith(" end")


def test_each_line_of_a_value_of_several_lines_is_found_alone():
    log = f"[2026] env dump: {KEY}\nlater: second-line-of-key"
    shown = Redactor({"KEY": KEY})(log)
    assert "line-of-key" not in shown


def test_bytes_that_are_not_utf8_pass_through_around_the_secret():
    raw = b"\xff\xfehf_abcdef\xff"
    assert Redactor({"T": "hf_abcdef"}).data(raw) == b"\xff\xfe[redacted:T]\xff"


def test_keys_and_values_of_nested_data_are_searched():
    tree = {"args": ["--token", "hf_abcdef"], "hf_abcdef": {"deep": ("x hf_abcdef",)}, "n": 3}
    shown = Redactor({"T": "hf_abcdef"}).tree(tree)
    assert "hf_abcdef" not in json.dumps(shown)
    assert shown["n"] == 3


def test_fields_that_hold_credentials_are_blanked_even_when_the_value_is_unknown():
    info = {
        "api_key": "sk-12345",
        "admin_api_key": "x",
        "tokenizer_path": "/m",
        "ssl_keyfile_password": "pw",
        "none": None,
    }
    shown = Redactor({}).tree(info)
    assert shown["api_key"] == shown["admin_api_key"] == shown["ssl_keyfile_password"] == "[redacted]"
    assert shown["tokenizer_path"] == "/m"


def test_of_two_values_where_one_begins_the_other_the_longer_goes_whole():
    shown = Redactor({"A": "abcdef", "B": "abcdefghij"})("abcdefghij")
    assert shown == "[redacted:B]"


@given(st.text(min_size=4), st.text(), st.text())
def test_no_text_around_a_secret_lets_it_through(secret, before, after):
    shown = Redactor({"NAME": secret})(before + secret + after)
    stripped = shown.replace("[redacted:NAME]", "")
    assert len(secret.strip()) < 4 or secret not in stripped or secret in before + after
