//! A lint of the migration files: they must run while the services run, and leave programs of the
//! previous version working.
//!
//! The rules count from file 0002 on. The first one, the baseline, makes the schema in an empty
//! database, so it may do anything.

use std::{collections::BTreeSet, fs, path::Path};

const FIRST_CHECKED: i64 = 2;

/// A migration's file.
struct File {
    name: String,
    sql: String,
}

impl File {
    fn version(&self) -> i64 {
        self.name
            .split('_')
            .next()
            .unwrap_or_default()
            .parse()
            .unwrap_or_default()
    }

    /// The comment lines that the file begins with.
    fn head(&self) -> Vec<&str> {
        self.sql
            .lines()
            .take_while(|line| line.starts_with("--"))
            .collect()
    }

    /// `-- contract: why`: removes or renames something that no served program uses.
    fn contracts(&self) -> bool {
        self.head().iter().any(|line| {
            line.strip_prefix("-- contract:")
                .is_some_and(|why| !why.trim().is_empty())
        })
    }

    /// Its statements in lower case, each on one line without comments. Bodies of functions are
    /// left out.
    fn statements(&self) -> Vec<String> {
        let bodies: Vec<&str> = self.sql.split("$$").collect();
        let code: Vec<String> = bodies
            .iter()
            .step_by(2)
            .flat_map(|part| part.lines())
            .map(|line| line.split("--").next().unwrap_or_default().to_lowercase())
            .collect();
        code.join(" ")
            .split(';')
            .map(|statement| statement.split_whitespace().collect::<Vec<_>>().join(" "))
            .filter(|statement| !statement.is_empty())
            .collect()
    }
}

/// The word after `words`, without what follows it.
fn word_after<'a>(statement: &'a str, words: &str) -> Option<&'a str> {
    let rest = statement.strip_prefix(words)?.trim_start();
    let rest = rest.strip_prefix("if not exists ").unwrap_or(rest);
    let rest = rest.strip_prefix("if exists ").unwrap_or(rest);
    let end = rest.find([' ', '(']).unwrap_or(rest.len());
    Some(&rest[..end])
}

/// The parts of a list that is separated by commas outside of parentheses.
fn actions(list: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    let mut start = 0;
    let mut parts = Vec::new();
    for (at, character) in list.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(list[start..].trim());
    parts
}

/// The fault of an `ALTER TABLE` action on a table with rows.
fn wrong_action(action: &str, contracts: bool) -> Option<&'static str> {
    let has = |words: &str| format!(" {action} ").contains(&format!(" {words} "));
    if action.starts_with("add constraint") {
        let unchecked = has("not valid") || has("using index");
        return (!unchecked)
            .then_some("a constraint is added NOT VALID, or USING INDEX of one that is there");
    }
    if action.starts_with("add") {
        let default = action.split_once(" default ").map(|(_, default)| default);
        let volatile =
            default.is_some_and(|default| default.contains('(') && !default.starts_with("now()"));
        return if volatile || has("generated") || has("serial") || has("bigserial") {
            Some(
                "the default of a new column is a constant or now(): anything else rewrites the table",
            )
        } else if ["check", "unique", "references", "primary key"]
            .iter()
            .any(|kind| has(kind) || action.contains(&format!(" {kind}(")))
        {
            Some("a constraint of a new column is added by itself, NOT VALID")
        } else if has("not null") && default.is_none() {
            Some(
                "a new column has a default or may be null: programs of the version before don't know it",
            )
        } else {
            None
        };
    }
    if action.starts_with("validate constraint") {
        return Some("a constraint is validated by a -- no-transaction migration of its own");
    }
    let sets_storage = action.starts_with("set (") || action.starts_with("reset (");
    let sets_default = action.starts_with("alter") && (has("set default") || has("set statistics"));
    (!sets_storage && !sets_default && !contracts)
        .then_some("what programs of the version before use is only changed under -- contract: why")
}

/// The fault of a statement; `existing` are the tables with rows.
fn wrong_statement(
    statement: &str,
    existing: &BTreeSet<String>,
    contracts: bool,
) -> Option<&'static str> {
    let known = |table: &str| existing.contains(table);
    if statement.starts_with("create index") || statement.starts_with("create unique index") {
        let table = statement
            .split_once(" on ")
            .and_then(|(_, rest)| word_after(rest, ""));
        return table.is_some_and(known).then_some(
            "an index on an existing table is built CONCURRENTLY, by a -- no-transaction migration",
        );
    }
    if let Some(table) = word_after(statement, "alter table") {
        if !known(table) {
            return None;
        }
        let list = statement
            .split_once(table)
            .map(|(_, list)| list)
            .unwrap_or_default();
        return actions(list)
            .into_iter()
            .find_map(|action| wrong_action(action, contracts));
    }
    let starts = |words: &[&str]| words.iter().any(|word| statement.starts_with(word));
    if starts(&["update ", "delete ", "truncate "]) {
        return Some("rows of live tables are changed by programs, in batches, not by a migration");
    }
    if starts(&["lock ", "set ", "select set_config", "begin", "commit"]) {
        return Some("the migrator sets lock_timeout and begins the transaction");
    }
    if starts(&["drop ", "alter "]) {
        return (!contracts).then_some(
            "what programs of the version before use is only removed under -- contract: why",
        );
    }
    let harmless = [
        "create table ",
        "create function ",
        "create or replace function ",
        "create trigger ",
        "create constraint trigger ",
        "create view ",
        // The table is new, or is read by nobody else while it is renamed.
        "create policy ",
        // A block that does one of these for each table.
        "do",
        // PostgreSQL only lets it add columns at the end, which older programs do not read.
        "create or replace view ",
        "insert into ",
        "comment on ",
        "create sequence ",
        "select setval(",
        "revoke execute on function ",
        "language plpgsql",
    ];
    (!starts(&harmless)).then_some(
        "the lint doesn't know this statement: teach it whether it waits for live queries",
    )
}

fn lint(files: &[File]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut existing = BTreeSet::new();
    for (index, file) in files.iter().enumerate() {
        let mut say = |what: &str| wrong.push(format!("{}: {what}", file.name));
        let version = file.version();
        let statements = file.statements();
        if Ok(version) != i64::try_from(index + 1) {
            say("migrations are numbered without gaps");
        }
        if version >= FIRST_CHECKED {
            let head = file.head();
            let serves: Vec<i64> = head
                .iter()
                .filter_map(|line| line.strip_prefix("-- serves:")?.trim().parse().ok())
                .collect();
            if !matches!(serves[..], [serves] if (1..=version).contains(&serves)) {
                say(
                    "its head has one line `-- serves: N`, the oldest schema version of a program that may run on it",
                );
            }
            if head
                .first()
                .is_some_and(|line| line.starts_with("-- no-transaction"))
            {
                let alone = matches!(&statements[..], [one] if
                    ["create index concurrently ", "create unique index concurrently ", "drop index concurrently "]
                        .iter().any(|start| one.starts_with(start))
                    || one == "do" // a block that commits in batches; its body is left out
                    || (one.starts_with("alter table ") && one.contains(" validate constraint ")));
                if !alone {
                    say(
                        "-- no-transaction holds one CREATE or DROP INDEX CONCURRENTLY, VALIDATE CONSTRAINT or DO",
                    );
                }
            } else {
                let found = statements
                    .iter()
                    .filter_map(|one| wrong_statement(one, &existing, file.contracts()));
                found.for_each(&mut say);
            }
        }
        existing.extend(
            statements
                .iter()
                .filter_map(|one| word_after(one, "create table").map(str::to_owned)),
        );
    }
    wrong
}

fn committed() -> Vec<File> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pg/migrations");
    let mut files: Vec<File> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| File {
            name: entry.file_name().into_string().unwrap(),
            sql: fs::read_to_string(entry.path()).unwrap(),
        })
        .collect();
    files.sort_by(|one, other| one.name.cmp(&other.name));
    files
}

#[test]
fn the_migrations_keep_the_rules() {
    let files = committed();
    assert!(!files.is_empty());
    assert_eq!(lint(&files), Vec::<String>::new());
}

#[test]
fn each_rule_finds_its_violation() {
    let checked = |sql: &str| {
        let mut files = committed();
        files.truncate(1);
        files.push(File {
            name: "0002_next.sql".to_owned(),
            sql: sql.to_owned(),
        });
        lint(&files)
    };
    let serving = |sql: &str| checked(&format!("-- serves: 1\n{sql}"));
    for good in [
        "ALTER TABLE orders ADD COLUMN lane text;",
        "ALTER TABLE orders ADD COLUMN a integer NOT NULL DEFAULT 0, ADD COLUMN b timestamptz NOT NULL DEFAULT now();",
        "ALTER TABLE orders ADD CONSTRAINT a CHECK (a > 0) NOT VALID;",
        "ALTER TABLE orders SET (fillfactor = 90);",
        "CREATE TABLE lanes (name text PRIMARY KEY CHECK (name <> '')); CREATE INDEX lanes_name ON lanes (name);",
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE orders SET a = 1; END $$;",
        "-- contract: no program since schema 1 reads it\nALTER TABLE orders DROP COLUMN traceparent;",
    ] {
        assert_eq!(serving(good), Vec::<String>::new(), "{good}");
    }
    let concurrent =
        "-- no-transaction\n-- serves: 1\nCREATE INDEX CONCURRENTLY a ON orders (created_at);";
    assert_eq!(checked(concurrent), Vec::<String>::new());

    for (bad, part) in testkit::rows! {
        "CREATE INDEX a ON orders (created_at);" => "CONCURRENTLY";
        "CREATE UNIQUE INDEX a ON orders (created_at);" => "CONCURRENTLY";
        "ALTER TABLE orders ADD COLUMN a uuid DEFAULT gen_random_uuid();" => "rewrites";
        "ALTER TABLE orders ADD COLUMN a text GENERATED ALWAYS AS (traceparent) STORED;" => "rewrites";
        "ALTER TABLE orders ADD COLUMN a text NOT NULL;" => "may be null";
        "ALTER TABLE orders ADD COLUMN a text UNIQUE;" => "by itself";
        "ALTER TABLE orders ADD COLUMN a text CHECK(a <> '');" => "by itself";
        "ALTER TABLE orders ADD COLUMN a text, ADD CONSTRAINT b CHECK (a <> '');" => "NOT VALID";
        "ALTER TABLE orders VALIDATE CONSTRAINT b;" => "of its own";
        "ALTER TABLE orders DROP COLUMN traceparent;" => "contract";
        "ALTER TABLE orders RENAME COLUMN traceparent TO trace;" => "contract";
        "ALTER TABLE orders ALTER COLUMN traceparent TYPE varchar;" => "contract";
        "ALTER TABLE orders ALTER COLUMN traceparent SET NOT NULL;" => "contract";
        "DROP INDEX placements_order;" => "contract";
        "-- contract:\nDROP TABLE orders;" => "contract";
        "UPDATE orders SET traceparent = NULL;" => "batches";
        "SET lock_timeout = 0;" => "lock_timeout";
        "LOCK TABLE orders;" => "lock_timeout";
        "CLUSTER orders USING orders_pkey;" => "doesn't know";
    } {
        let found = serving(bad);
        assert!(
            found.len() == 1 && found[0].contains(part),
            "{bad}: {found:?}"
        );
    }
    for bad in [
        "CREATE TABLE a (b text);",
        "-- serves: 3\nCREATE TABLE a (b text);",
    ] {
        assert!(checked(bad)[0].contains("-- serves: N"), "{bad}");
    }
    let two = format!("{concurrent}\nCREATE INDEX CONCURRENTLY b ON orders (created_at);");
    assert!(checked(&two)[0].contains("holds one"));
    let mut gap = committed();
    gap.push(File {
        name: "0099_gap.sql".to_owned(),
        sql: "-- serves: 1\n".to_owned(),
    });
    assert!(lint(&gap)[0].contains("gaps"));
}
