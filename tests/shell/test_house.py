#!/usr/bin/env python3
"""Each rule of house.py finds its fault in a small house, and finds nothing where there is none."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import house  # noqa: E402

FLOORS = """
[crates]
floors = [[["ground"]], [["roof"]]]
[floors]
"libs/roof" = [[["low"]], [["left"], ["right"]], [["lib"]]]
"""


class House(unittest.TestCase):
    def faults(self, files, floors=FLOORS):
        with tempfile.TemporaryDirectory() as root:
            whole = {
                "Cargo.toml": '[workspace]\nmembers = ["libs/*"]\n',
                "tests/shell/house.toml": floors,
                "libs/ground/Cargo.toml": '[package]\nname = "ground"\n',
                "libs/ground/src/lib.rs": "",
                "libs/roof/Cargo.toml": '[package]\nname = "roof"\n[dependencies]\nground.path = "../ground"\n',
                "libs/roof/src/lib.rs": "mod left;\nmod low;\nmod right;\npub use low::Low;\n",
                "libs/roof/src/low.rs": "pub struct Low;\n",
                "libs/roof/src/left.rs": "use crate::Low;\npub fn left(_: Low) {}\n",
                "libs/roof/src/right.rs": "pub fn right() {}\n",
            } | files
            for name, text in whole.items():
                file = Path(root) / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return house.check(root)

    def finds(self, files, *words, floors=FLOORS):
        faults = self.faults(files, floors)
        self.assertEqual(len(faults), 1, faults)
        for word in words:
            self.assertIn(word, faults[0])

    def test_a_house_in_order_has_no_faults(self):
        self.assertEqual(self.faults({}), [])

    def test_files_that_name_each_other(self):
        ring = {
            "libs/ground/src/lib.rs": "mod a;\nmod b;\n",
            "libs/ground/src/a.rs": "use super::b::B;\npub struct A(B);\n",
            "libs/ground/src/b.rs": "pub enum B { One(Box<crate::a::A>) }\n",
        }
        self.finds(ring, "circle", "a.rs -> libs/ground/src/b.rs")

    def test_a_circle_through_a_re_export(self):
        ring = {
            "libs/ground/src/lib.rs": "mod a;\nmod b;\npub use a::A;\npub use b::{B as C};\n",
            "libs/ground/src/a.rs": "pub struct A(Box<crate::C>);\n",
            "libs/ground/src/b.rs": "use crate::A;\npub struct B(A);\n",
        }
        self.finds(ring, "circle")

    def test_a_circle_that_a_re_export_hides(self):
        ring = {
            "libs/ground/src/lib.rs": "mod route;\nmod story;\n",
            "libs/ground/src/story.rs": "mod time;\npub use time::minute;\npub fn story() { crate::route::route() }\n",
            "libs/ground/src/story/time.rs": "pub fn minute() {}\n",
            "libs/ground/src/route.rs": "use crate::story::minute;\npub fn route() { minute() }\n",
        }
        self.finds(ring, "circle", "route.rs -> libs/ground/src/story.rs")

    def test_a_module_may_name_what_the_one_above_it_passes_on(self):
        above = {
            "libs/ground/src/lib.rs": "mod story;\n",
            "libs/ground/src/story.rs": "mod a;\nmod b;\npub use a::A;\npub fn story() { b::b(A) }\n",
            "libs/ground/src/story/a.rs": "pub struct A;\n",
            "libs/ground/src/story/b.rs": "use super::A;\npub fn b(_: A) {}\n",
        }
        self.assertEqual(self.faults(above), [])

    def test_what_only_tests_and_comments_name_does_not_count(self):
        tests = {
            "libs/ground/src/lib.rs": "mod a;\nmod b;\n",
            "libs/ground/src/a.rs": "use super::b::B;\npub struct A(B);\n",
            "libs/ground/src/b.rs": "//! See [`crate::a::A`].\npub struct B;\nconst TEXT: &str = \"crate::a::A\";\n"
            "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
        }
        self.assertEqual(self.faults(tests), [])

    def test_a_module_in_its_folder(self):
        self.finds({"libs/ground/src/a/mod.rs": ""}, "beside its folder: libs/ground/src/a/mod.rs has to be libs/ground/src/a.rs")

    def test_an_arrow_that_runs_up(self):
        self.finds({"libs/roof/src/low.rs": "pub struct Low;\nfn up() { crate::right::right() }\n"}, "low.rs -> libs/roof/src/right.rs")

    def test_an_arrow_into_another_room(self):
        self.finds({"libs/roof/src/right.rs": "use crate::left;\npub fn right() { left::left(todo!()) }\n"}, "right.rs -> libs/roof/src/left.rs")

    def test_a_crate_that_depends_upward(self):
        self.finds({"libs/ground/Cargo.toml": '[package]\nname = "ground"\n[dependencies]\nroof.path = "../roof"\n'}, "crate ground -> crate roof")

    def test_a_file_and_a_crate_without_a_floor(self):
        files = {"libs/roof/src/lib.rs": "mod left;\nmod low;\nmod new;\nmod right;\npub use low::Low;\n", "libs/roof/src/new.rs": ""}
        self.finds(files, "new.rs has no floor")
        self.finds({"libs/new/Cargo.toml": '[package]\nname = "new"\n', "libs/new/src/lib.rs": ""}, "crate new has no floor")

    def test_decisions_by_prose(self):
        for code in (
            'row.reason == "gone"',
            "row.reason.as_deref() == Some(GONE)",
            "one.message.contains(WORD)",
            'row.command.strip_prefix("placement ")',
            'GONE != row.detail',
            'match row.reason.as_str() { "gone" => 1, _ => 2 }',
            'reason.starts_with("gone")',
            'query("SELECT 1 FROM orders WHERE reason LIKE \'gone%\'")',
        ):
            self.finds({"libs/roof/src/low.rs": f"pub struct Low;\nfn f() {{ {code}; }}\n"}, "decides by a text")

    def test_decisions_by_a_code(self):
        for code in (
            "row.reason == Some(Reason::Gone)",
            "row.reason == Gone",
            "match row.reason { Reason::Gone => 1 }",
            "row.reason = text",
            'query("UPDATE orders SET reason = \'gone\'")',
            '// row.reason == "gone"\n',
        ):
            self.assertEqual(self.faults({"libs/roof/src/low.rs": f"pub struct Low;\nfn f() {{ {code}; }}\n"}), [])

    def test_a_state_as_text(self):
        for field in ("state: String", "pub state: Option<String>", "pub(crate) order_state: &str"):
            self.finds({"libs/roof/src/low.rs": f"pub struct Low {{\n    {field},\n}}\n"}, "a state is an enum")
        for field in ("state: Stored<State>", "/// state: String\n    stated: String"):
            self.assertEqual(self.faults({"libs/roof/src/low.rs": f"pub struct Low {{\n    {field},\n}}\n"}), [])

    def test_a_name_with_two_meanings(self):
        low = {"libs/ground/src/lib.rs": "mod a;\n", "libs/ground/src/a.rs": "pub(super) enum Low {}\n"}
        self.finds(low, "a public type Low: libs/ground/src/a.rs, libs/roof/src/low.rs")
        self.assertEqual(self.faults(low, FLOORS + '[shared_names]\nLow = "for a reason"\n'), [])
        self.finds({}, "lists what is gone: Low", floors=FLOORS + '[shared_names]\nLow = "for a reason"\n')
        for second in ("enum Low {}", "pub struct Lower;", "#[cfg(test)]\nmod tests {\n    pub struct Low;\n}", "// pub struct Low;"):
            self.assertEqual(self.faults({"libs/ground/src/lib.rs": f"{second}\n"}), [])

    def test_orders_that_are_told_before_they_are_on_disk(self):
        desk = {"libs/desk/Cargo.toml": '[package]\nname = "desk"\n', "libs/desk/src/lib.rs": "mod read;\n"}
        floors = FLOORS.replace('[["ground"]]', '[["ground"], ["desk"]]')
        look = 'pub fn read() {{ sqlx::query!("SELECT * FROM {}"); }}\n'
        for table in ("orders o", "partner_units", "deliveries d JOIN topups t"):
            files = desk | {"libs/desk/src/read.rs": look.format(table)}
            self.finds(files, "told after its flush", "libs/desk/src/read.rs", floors=floors)
            told = "use store::Unflushed;\n" + look.format(table)
            self.assertEqual(self.faults(desk | {"libs/desk/src/read.rs": told}, floors), [])
        files = desk | {"libs/desk/src/read.rs": look.format("partners")}
        self.assertEqual(self.faults(files, floors), [])

    def test_transactions_that_begin_elsewhere(self):
        for begin in ("connection.begin()", "connection.begin_with(text)", "sqlx::Connection::begin(connection)"):
            self.finds({"libs/roof/src/low.rs": f"fn low() {{\n    {begin};\n}}\n"}, "begins at the door", "low.rs")
        self.assertEqual(self.faults({"libs/roof/src/low.rs": "fn low() {\n    resends::begin(1);\n}\n"}), [])

    def test_a_wide_comment(self):
        words = "word " * 19
        for wide in (f"// {words}wider", f"    /// {words}w", f"//! {words}wide"):
            self.finds({"libs/roof/src/right.rs": f"pub fn right() {{}}\n{wide}\n"}, "columns instead of 100: libs/roof/src/right.rs (line 2)")
            document = {"docs/openapi.json": f'{{"description": "One.\\n{wide.lstrip("/! ")}"}}'}
            self.assertEqual(self.faults({"libs/roof/src/right.rs": f"{wide}\n"} | document), [])
        for fine in (f"// {words}w", f"//! | {words}wider |", f"/// ```text\n/// {words}wider\n/// ```", f'let text = "{words}wider";'):
            self.assertEqual(self.faults({"libs/roof/src/right.rs": f"{fine}\n"}), [])

    def test_what_the_architecture_names(self):
        row = "| a step | `libs/roof/src/left.rs` | `left` |\n"
        self.assertEqual(self.faults({"docs/architecture.md": row}), [])
        for page, fault in (
            (row.replace("left.rs", "gone.rs"), "a file that is not there: libs/roof/src/gone.rs"),
            ("It is in `libs/roof/src/gone.rs`.", "a file that is not there: libs/roof/src/gone.rs"),
            (row.replace("`left`", "`gone`"), "the function gone, which libs/roof/src/left.rs has not"),
        ):
            self.finds({"docs/architecture.md": page}, fault)

    def test_what_the_recipes_name(self):
        row = "| `libs/roof/src/left.rs`, `metrics.rs` | `left`, `Left::left`; `UPDATE=1 run` |\n"
        self.assertEqual(self.faults({"CONTRIBUTING.md": row}), [])
        for page, fault in (
            (row.replace("left.rs", "gone.rs"), "CONTRIBUTING.md names a file that is not there: libs/roof/src/gone.rs"),
            ("It is in `libs/roof/src/gone.rs`.", "a file that is not there: libs/roof/src/gone.rs"),
            ("| `described.rs` | its schema |", "a file that is not there: described.rs"),
            (row.replace("`left`", "`gone`"), "CONTRIBUTING.md names gone, which libs/roof/src/left.rs and metrics.rs has not"),
            (row.replace("Left::left", "Left::gone"), "CONTRIBUTING.md names Left::gone"),
            (row.replace("`left`", "`it_holds_in_each_case`"), "the test it_holds_in_each_case, which is not there"),
        ):
            self.finds({"CONTRIBUTING.md": page}, fault)

    def test_what_is_known_must_exist(self):
        known = '\n[known]\narrows = ["libs/roof/src/low.rs -> libs/roof/src/right.rs"]\ncircles = ["libs/ground/src/a.rs -> libs/ground/src/b.rs"]\n'
        faults = self.faults({}, FLOORS + known)
        self.assertEqual(len(faults), 2, faults)


if __name__ == "__main__":
    unittest.main()
