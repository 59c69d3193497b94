"""From tokenizer.json to the keys of the file, and on to the tokenizer that is built from them."""

from __future__ import annotations

import json

import pytest

from kinfolk.convert.tokenizer import byte_level, spelled_out
from kinfolk.errors import ConversionError
from kinfolk.gguf.file import GGUFFile
from kinfolk.text.tokenizer import Tokenizer
from kinfolk_qwen35.text import PRETOKENIZERS

SIZE = 320
TEXTS = (
    "an ant, a mint! I'LL",
    "x = 12345\r\n\r\n  y",
    "naïve ÉLAN 中文 🙂",
    "<|im_start|>user\nentist<|im_end|><think></think>",
    " " * 7 + "\t\n",
    "",
)


@pytest.fixture
def directory(tmp_path, write_tokenizer):
    write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


@pytest.fixture
def keys(directory):
    """The keys of the directory as it is now."""
    return lambda: dict(byte_level(SIZE, PRETOKENIZERS)(directory))


def added(text: str, **flags: bool) -> dict[str, object]:
    return {"id": 311, "content": text, "special": False, "normalized": False} | flags


def test_ids_are_those_of_the_tokenizers_library(checkpoint, converted, family):
    from tokenizers import Tokenizer as HuggingFace

    directory = checkpoint()
    with GGUFFile.open(converted(directory).path) as file:
        ours = Tokenizer.from_metadata(file.metadata, [family])
    theirs = HuggingFace.from_file(str(directory / "tokenizer.json"))
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text).ids, text
        assert ours.decode(ours.encode(text)) == text


def test_the_keys_of_the_file(keys):
    found = keys()
    assert found["tokenizer.ggml.model"] == "gpt2"
    assert found["tokenizer.ggml.pre"] == "qwen35"
    assert len(found["tokenizer.ggml.tokens"]) == len(found["tokenizer.ggml.token_type"]) == SIZE
    assert found["tokenizer.ggml.merges"][-1] == "is m"
    assert found["tokenizer.ggml.eos_token_id"] == 308
    assert found["tokenizer.ggml.padding_token_id"] == 306
    assert "tokenizer.ggml.bos_token_id" not in found
    assert found["tokenizer.ggml.add_bos_token"] is False
    assert found["tokenizer.chat_template"] == "{{ messages }}"


def test_what_the_file_cannot_say_is_named(keys, directory, caplog):
    keys()
    assert caplog.messages == []
    path = directory / "tokenizer.json"
    found = json.loads(path.read_text())
    found["model"] |= {"ignore_merges": True, "dropout": 0.1}
    found["added_tokens"] += [added("<mask>", lstrip=True)]
    path.write_text(json.dumps(found))
    keys()
    (message,) = caplog.messages
    assert str(path) in message
    assert "'ignore_merges' is True, 'dropout' is 0.1, 'lstrip' of '<mask>'" in message


def test_types_tell_control_user_defined_and_padding_apart(keys):
    found = keys()
    types = dict(
        zip(
            found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"].tolist(), strict=True
        )
    )
    assert types["ant"] == types["Ġ"] == 1
    assert types["<|im_end|>"] == 3
    assert types["<|tool|>"] == 3, "looks special, whatever its flag says"
    assert types["<think>"] == 4
    assert types["[PAD311]"] == types["[PAD319]"] == 5


def test_a_template_in_its_own_file_counts_more(keys, directory):
    (directory / "chat_template.jinja").write_text("own")
    assert keys()["tokenizer.chat_template"] == "own"


def test_named_templates_keep_their_names(keys, directory, edit_json):
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    edit_json(directory / "tokenizer_config.json", lambda s: s.update(chat_template=named))
    assert keys()["tokenizer.chat_template"] == "a"
    assert keys()["tokenizer.chat_template.tool_use"] == "b"


def test_a_token_before_every_text_is_stated(keys, directory, edit_json):
    """The settings state it, or else the tokenizer's own output does."""
    settings = directory / "tokenizer_config.json"
    edit_json(settings, lambda s: s.update(bos_token="<|im_start|>"))
    assert keys()["tokenizer.ggml.bos_token_id"] == 307
    assert keys()["tokenizer.ggml.add_bos_token"] is False
    from tokenizers import Tokenizer as HuggingFace
    from tokenizers.processors import TemplateProcessing

    path = str(directory / "tokenizer.json")
    tokenizer = HuggingFace.from_file(path)
    tokenizer.post_processor = TemplateProcessing(
        "<|im_start|> $A", special_tokens=[("<|im_start|>", 307)]
    )
    tokenizer.save(path)
    assert keys()["tokenizer.ggml.add_bos_token"] is True
    edit_json(settings, lambda s: s.update(add_bos_token=False))
    assert keys()["tokenizer.ggml.add_bos_token"] is False


def test_special_ids_of_the_configuration_count_where_the_settings_are_silent(
    keys, directory, edit_json
):
    edit_json(directory / "tokenizer_config.json", lambda s: s.pop("eos_token"))
    (directory / "config.json").write_text(
        json.dumps({"text_config": {"eos_token_id": [307, 308]}})
    )
    assert keys()["tokenizer.ggml.eos_token_id"] == 307


def test_case_insensitive_groups_are_spelled_out():
    assert spelled_out("(?i:'s|'ll)|x+") == "(?:'[sS]|'[lL][lL])|x+"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t["model"].update(type="Unigram"), "'Unigram'; only byte-level BPE"),
        (lambda t: t["model"].update(byte_fallback=True), "only byte-level BPE"),
        (lambda t: t.update(normalizer={"type": "Lowercase"}), "'Lowercase' cannot"),
        (
            lambda t: t["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex="\\w+"),
            r"none of the ways .* \('qwen35', 'qwen2'\)",
        ),
        (
            lambda t: t["pre_tokenizer"]["pretokenizers"][0].update(behavior="Removed"),
            "behaviour 'Removed'",
        ),
        (lambda t: t["pre_tokenizer"]["pretokenizers"].pop(), "not a byte-level one"),
        (lambda t: t.update(pre_tokenizer=None), "no 'pre_tokenizer'"),
        (lambda t: t["model"]["merges"].append(["a b", "c"]), "no pair"),
        (lambda t: t["added_tokens"].append(added("ant")), "'ant' occurs twice"),
        (lambda t: t["added_tokens"].append(added("big", id=320)), "'big' has id 320"),
    ],
)
def test_what_the_file_could_not_express_is_refused(change, words, keys, directory, edit_json):
    edit_json(directory / "tokenizer.json", change)
    with pytest.raises(ConversionError, match=words) as failure:
        keys()
    assert str(directory / "tokenizer.json") in str(failure.value)


def test_a_named_special_that_is_no_token_is_refused(keys, directory, edit_json):
    edit_json(directory / "tokenizer_config.json", lambda s: s.update(eos_token="</s>"))
    with pytest.raises(ConversionError, match="'</s>', which is no token"):
        keys()


def test_a_model_without_tokenizer_can_be_converted_if_asked(checkpoint, converted):
    directory = checkpoint()
    (directory / "tokenizer.json").unlink()
    with pytest.raises(ConversionError, match="convert without one"):
        converted(directory)
    with GGUFFile.open(converted(directory, tokenizer=False).path) as file:
        assert file.metadata.string("tokenizer.ggml.model") == "none"
        assert file.metadata.integer("qwen35.vocab_size") == 320
