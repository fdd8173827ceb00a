//! Writes CSV for people: the lists of `esimctl` and of the console, and statements of partners.
//!
//! Lines end with a line feed, so that the tools of a shell read them as lines, and a field is
//! quoted where it needs it (RFC 4180). A field that a spreadsheet would take for a formula gets a
//! quote before it, because others have chosen what it holds: an external order id `=HYPERLINK(…)`
//! would run on the machine of whoever opens the file.

/// A table as CSV, with the names of its columns in the first line.
pub fn table<Row: AsRef<[String]>>(
    names: &[impl AsRef<str>],
    rows: impl IntoIterator<Item = Row>,
) -> String {
    let mut text = String::new();
    line(&mut text, names);
    for row in rows {
        line(&mut text, row.as_ref());
    }
    text
}

fn line(text: &mut String, fields: &[impl AsRef<str>]) {
    for (index, field) in fields.iter().map(AsRef::as_ref).enumerate() {
        if index > 0 {
            text.push(',');
        }
        put(text, field);
    }
    text.push('\n');
}

fn put(text: &mut String, field: &str) {
    // A spreadsheet skips blanks before it looks for a formula, and takes the wide forms for the
    // same signs. A sign alone, such as the dash of an empty cell, is none.
    let mut begins = field.trim_start().chars();
    let is_sign = matches!(
        begins.next(),
        Some('=' | '+' | '-' | '@' | '＝' | '＋' | '－' | '＠')
    );
    let is_formula = (is_sign && begins.next().is_some()) || field.starts_with(['\t', '\r', '\n']);
    // A semicolon or a tab divides fields where a spreadsheet expects it to.
    let is_quoted = field.contains([',', ';', '\t', '"', '\r', '\n']);
    if is_quoted {
        text.push('"');
    }
    if is_formula {
        text.push('\'');
    }
    if is_quoted {
        text.push_str(&field.replace('"', "\"\""));
        text.push('"');
    } else {
        text.push_str(field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_one_field_and_no_formula() {
        let row = ["a \"b\", c", "plain", "a;b", "two\nlines", ""].map(str::to_owned);
        assert_eq!(
            table(&["1", "2", "3", "4", "5"], [row]),
            "1,2,3,4,5\n\"a \"\"b\"\", c\",plain,\"a;b\",\"two\nlines\",\n"
        );
        for formula in [
            "=1+1", "+1", "-5", "@A1", "\t=1", "\r=1", " =1+1", "＝1", "\n=1",
        ] {
            let row = [formula.to_owned(), "8981".to_owned()];
            let text = table(&["a", "b"], [row]);
            let field = text.strip_prefix("a,b\n").unwrap().trim_start_matches('"');
            assert!(field.starts_with('\''), "{formula:?}: {text:?}");
        }
        assert_eq!(table(&["a"], [["-".to_owned()]]), "a\n-\n");
        let quoted = ["=HYPERLINK(\"http://x\",\"y\")".to_owned()];
        assert_eq!(
            table(&["a"], [quoted]),
            "a\n\"'=HYPERLINK(\"\"http://x\"\",\"\"y\"\")\"\n"
        );
    }
}
