"""Each mistake that a plugin can make has a message that a new author understands."""

import pytest

from kinfolk.loader import CORE, PluginRecord, load

REGISTER = """
@hookimpl
def register_drafters({arguments}):
    return {value}
"""


def test_a_good_plugin_is_ok_and_its_hooks_are_listed(record_of):
    record = record_of(
        """
        @hookimpl
        def register_policies():
            return []
        @hookimpl
        def register_drafters():
            return [DrafterSpec("d", "m:f")]
        """
    )
    assert (record.status, record.reason) == ("ok", "")
    assert record.hooks == ("register_drafters", "register_policies")


def test_a_plugin_without_hooks_is_ok(record_of):
    assert record_of("").status == "ok"


def test_everything_registered_is_stamped_with_its_origin(plugin):
    module = plugin(REGISTER.format(arguments="", value='(DrafterSpec("d", "m:f"),)'))
    loaded = load(PluginRecord("mine", "mine", "kinfolk-mine", "3.1"), module)
    (provided,) = loaded.provided["register_drafters"]
    assert provided.plugin == "mine"
    assert provided.source == "plugin 'mine' (kinfolk-mine 3.1)"
    assert provided.value.name == "d"


# -- import and version ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import no_such_module_here", ["ModuleNotFoundError: No module named 'no_such_module"]),
        ("1 / 0", ["ZeroDivisionError: division by zero", ".py, line 5"]),
        ("raise SystemExit(3)", ["SystemExit: 3"]),
        ("def broken(:", ["SyntaxError: invalid syntax"]),
        ("raise RuntimeError('two\\nlines')", ["RuntimeError: two lines"]),
    ],
    ids=["missing module", "exception", "exit", "syntax", "text of several lines"],
)
def test_an_import_error_is_reported_with_its_place(site, discover, body, words):
    site("broken", "kinfolk-broken", body)
    record = {record.name: record for record in discover().records}["broken"]
    assert record.status == "failed"
    assert record.reason.startswith("importing site_broken_")
    for word in words:
        assert word in record.reason
    assert "\n" not in record.reason
    assert record.trace.startswith("Traceback")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "states no KINFOLK_API; add the line KINFOLK_API = (1, 1)"),
        ("'1.0'", "KINFOLK_API is '1.0'; it must be two ints, like (1, 1)"),
        ("(1, True)", "KINFOLK_API is (1, True); it must be two ints, like (1, 1)"),
        ("(2, 0)", "needs plugin API 2.0, this kinfolk has 1.1; install a newer kinfolk"),
        ("(0, 9)", "needs plugin API 0.9, this kinfolk has 1.1; install an older kinfolk"),
        ("(1, 2)", "needs plugin API 1.2, this kinfolk has 1.1; install a newer kinfolk"),
    ],
)
def test_a_wrong_api_version_is_named_with_the_one_at_hand(record_of, value, reason):
    preamble = "" if value is None else f"KINFOLK_API = {value}\n"
    record = record_of("", preamble=preamble)
    assert record.status == "failed"
    assert reason in record.reason


def test_an_older_minor_version_is_welcome(record_of, monkeypatch):
    monkeypatch.setattr("kinfolk.loader.API", (1, 4))
    assert record_of("", preamble="KINFOLK_API = (1, 2)\n").status == "ok"


def test_an_entry_point_must_name_a_module(site, discover):
    site("odd", "kinfolk-odd", "", module="site_odd", value="site_odd:register_families")
    record = {record.name: record for record in discover().records}["odd"]
    assert record.status == "failed"
    assert "'site_odd:register_families'; it must name a module" in record.reason


# -- hooks that would be ignored, or called wrongly -----------------------------------------------


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "@hookimpl\ndef register_familys(): return []",
            "there is no hook register_familys; did you mean register_families?",
        ),
        (
            "@hookimpl\ndef zzz(): return []",
            "there is no hook zzz; the hooks are register_families, register_op_backends",
        ),
        (
            "@hookimpl(specname='register_famlies')\ndef anything(): return []",
            "there is no hook register_famlies; did you mean register_families?",
        ),
        (
            "@hookimpl\ndef verify(step): return None",
            "verify is a model hook; put it on the object that Family.hooks or PolicySpec.create",
        ),
        (
            "def register_families(): return []",
            "register_families has the name of a hook but is not marked with @hookimpl",
        ),
        (
            "@hookimpl\nclass register_families: pass",
            "register_families is marked with @hookimpl but is a type",
        ),
        (
            "@hookimpl\ndef register_commands(cil): pass",
            "register_commands(cli) has no argument 'cil'; did you mean 'cli'?",
        ),
        (
            "@hookimpl\ndef register_families(config): return []",
            "register_families() has no argument 'config'",
        ),
        (
            "@hookimpl\ndef register_commands(cli=None): pass",
            "register_commands(cli) gives 'cli' a default, which would replace the value passed",
        ),
        (
            "@hookimpl\ndef register_families(extra=1): return []",
            "register_families() has no argument 'extra'",
        ),
        (
            "@hookimpl\ndef register_commands(*, cli): pass",
            "register_commands(cli) takes 'cli' by keyword only",
        ),
        (
            "@hookimpl\ndef register_commands(*args): pass",
            "register_commands(cli) takes *args, which a hook never receives",
        ),
        (
            "@hookimpl\ndef register_commands(**rest): pass",
            "register_commands(cli) takes **rest, which a hook never receives",
        ),
        (
            "@hookimpl\nasync def register_families(): return []",
            "register_families is async; hooks are called without an event loop",
        ),
        (
            "@hookimpl\nasync def register_families(): yield 1",
            "register_families is async",
        ),
        (
            "@hookimpl\ndef register_families(): yield 1",
            "register_families is a generator; return a list instead of yielding",
        ),
        (
            "@hookimpl(wrapper=True)\ndef register_families(): return (yield)",
            "register_families is a wrapper; what other plugins register cannot be wrapped",
        ),
        (
            "@hookimpl(hookwrapper=True)\ndef register_families(): yield",
            "register_families uses hookwrapper=True",
        ),
        (
            "@hookimpl(tryfirst=True)\ndef register_families(): return []",
            "register_families uses tryfirst or trylast; the order of plugins is the host's",
        ),
        (
            "@hookimpl(trylast=True)\ndef register_families(): return []",
            "register_families uses tryfirst or trylast",
        ),
    ],
)
def test_a_hook_that_cannot_work_is_refused_with_its_reason(record_of, body, reason):
    record = record_of(body)
    assert record.status == "failed"
    assert reason in record.reason


def test_all_mistakes_of_a_plugin_are_reported_together(record_of):
    record = record_of(
        """
        @hookimpl
        def register_familys(): return []
        @hookimpl
        def register_drafter(): return []
        """
    )
    assert "did you mean register_families?" in record.reason
    assert "did you mean register_drafters?" in record.reason


def test_an_optional_hook_of_another_version_is_left_alone(record_of):
    body = "@hookimpl(optionalhook=True)\ndef register_futures(): return []"
    assert record_of(body).status == "ok"


# -- return values of hooks -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("None", "register_drafters returned None; it must return a list"),
        ("'d'", "register_drafters returned 'd'; it must return a list"),
        ("{1}", "register_drafters returned an object of type set; it must return a list"),
        ("DrafterSpec('d', 'm:f')", "returned DrafterSpec 'd'; it must return a list"),
        ("[DrafterSpec]", "at place 0 the class DrafterSpec, which is no DrafterSpec"),
        ("[PolicySpec('p', 'm:f')]", "PolicySpec 'p', which is no DrafterSpec"),
        ("[DrafterSpec('', 'm:f')]", "DrafterSpec.name: ''; a name is made of letters"),
        ("[DrafterSpec('a,b', 'm:f')]", "DrafterSpec.name: 'a,b'; a name is made of letters"),
        (
            "[DrafterSpec('d', len)]",
            "DrafterSpec.create: Input should be a valid string, not <built-in function len>",
        ),
        ("[DrafterSpec('d')]", "DrafterSpec: state create, or prepare and build"),
        ("[DrafterSpec('d', prepare='m:f')]", "DrafterSpec.build: ''; a reference is a string"),
        (
            "[DrafterSpec('d', 'm:f', architectures=('a',))]",
            "DrafterSpec.architectures: a drafter has weights (prepare, build) or is one of the",
        ),
        ("[DrafterSpec('d', 'm.f')]", """'m.f'; a reference is a string "module:attribute\""""),
        (
            "[DrafterSpec('d', 'm:f', 7)]",
            "DrafterSpec.summary: Input should be a valid string, not 7",
        ),
        ("[DrafterSpec('d', 'm:f'), 5]", "register_drafters returned at place 1 5, which is no"),
        (
            "[DrafterSpec('d', 'm:f'), DrafterSpec('d', 'm:g')]",
            "register_drafters returned the name 'd' twice",
        ),
    ],
)
def test_a_bad_value_is_refused_with_its_place(record_of, value, reason):
    record = record_of(REGISTER.format(arguments="", value=value))
    assert record.status == "failed"
    assert reason in record.reason


def test_two_formats_of_one_type_are_the_mistake_of_their_plugin(record_of):
    formats = "[QuantFormat(name, 1001, 32, 6, 'm:f') for name in ('SIGNS', 'SIGNS2')]"
    record = record_of(
        "from kinfolk.descriptors import QuantFormat\n"
        f"@hookimpl\ndef register_quant_formats():\n    return {formats}"
    )
    assert record.status == "failed"
    assert "register_quant_formats returned the name 'type 1001' twice" in record.reason


def test_an_exception_in_a_hook_is_reported_with_its_place(record_of):
    record = record_of(REGISTER.format(arguments="", value="[][0]"))
    assert record.status == "failed"
    assert record.reason == "register_drafters failed: IndexError: list index out of range"
    assert "IndexError" in record.trace


def test_an_object_that_raises_when_looked_at_breaks_only_its_plugin(record_of):
    record = record_of(
        """
        class Trap(FamilyBase):
            @property
            def name(self):
                raise OSError("no name today")
        @hookimpl
        def register_families():
            return [Trap()]
        """
    )
    assert record.status == "failed"
    assert "no name today" in record.reason


def test_a_plugin_that_fails_in_one_hook_loses_what_it_registered_in_others(plugin):
    module = plugin(
        """
        @hookimpl
        def register_drafters():
            return [DrafterSpec("d", "m:f")]
        @hookimpl
        def register_policies():
            raise RuntimeError("not today")
        """
    )
    loaded = load(PluginRecord("mine", "mine", "", ""), module)
    assert loaded.status == "failed"
    assert loaded.provided == {}


def test_two_functions_may_answer_one_hook_under_other_names(plugin):
    module = plugin(
        """
        @hookimpl(specname="register_drafters")
        def one(): return [DrafterSpec("a", "m:f")]
        @hookimpl(specname="register_drafters")
        def two(): return [DrafterSpec("b", "m:f")]
        """
    )
    loaded = load(PluginRecord("mine", "mine", "", ""), module)
    names = sorted(item.value.name for item in loaded.provided["register_drafters"])
    assert names == ["a", "b"]


# -- commands -------------------------------------------------------------------------------------


def test_commands_are_collected_without_touching_the_command_line(plugin):
    module = plugin(
        """
        @hookimpl
        def register_commands(cli):
            @cli.command()
            def hello(): ...
            @cli.group()
            def more(): ...
        """
    )
    loaded = load(PluginRecord("mine", "mine", "", ""), module)
    names = sorted(item.value.name for item in loaded.provided["register_commands"])
    assert names == ["hello", "more"]


def test_a_command_hook_may_leave_out_its_argument(record_of):
    assert record_of("@hookimpl\ndef register_commands(): pass").status == "ok"


def test_loading_twice_has_no_side_effect(plugin):
    module = plugin(REGISTER.format(arguments="", value="[DrafterSpec('d', 'm:f')]"))
    record = PluginRecord("mine", "mine", "", "")
    assert load(record, module) == load(record, module)


def test_the_name_of_the_core_is_reserved(site, discover):
    site(CORE, "kinfolk-impostor", "")
    record = {record.distribution: record for record in discover().records}["kinfolk-impostor"]
    assert record.status == "conflict"
    assert "belongs to the core" in record.reason
