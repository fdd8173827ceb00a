//! Writes CSV for people: the lists of `esimctl` and of the console, and statements of partners.
//!
//! Lines end with a line feed, so that the tools of a shell read them as lines, and a field is
//! quoted where it needs it (RFC 4180). A field that a spreadsheet would take for a formula gets a
//! quote before it, because others have chosen what it holds: an external order id `=HYPERLINK(…)`
//! would run on the machine of whoever opens the file. A negative number is none, so that amounts
//! stay numbers.

/// A table as CSV, with the names of its columns in the first line.
pub fn table<Row: AsRef<[String]>>(
    names: &[impl AsRef<str>],
    rows: impl IntoIterator<Item = Row>,
) -> String {
    let mut text = String::new();
    line(&mut text, names);
    text.push_str(&lines(rows));
    text
}

/// Further rows of a table.
pub fn lines<Row: AsRef<[String]>>(rows: impl IntoIterator<Item = Row>) -> String {
    let mut text = String::new();
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
    let is_formula = (is_sign && !is_number(field) && begins.next().is_some())
        || field.starts_with(['\t', '\r', '\n']);
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

/// Whether a field is a negative decimal number, such as `-4.50`, and nothing else.
fn is_number(field: &str) -> bool {
    let Some(digits) = field.strip_prefix('-') else {
        return false;
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|one| one.is_ascii_digit());
    is_digits(whole) && is_digits(part)
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
            "=1+1", "+1", "-5+1", "-A1", "-5.", "- 5", " -5", "-5.0.0", "@A1", "\t=1", "\r=1",
            " =1+1", "＝1", "\n=1",
        ] {
            let row = [formula.to_owned(), "8981".to_owned()];
            let text = table(&["a", "b"], [row]);
            let field = text.strip_prefix("a,b\n").unwrap().trim_start_matches('"');
            assert!(field.starts_with('\''), "{formula:?}: {text:?}");
        }
        assert_eq!(table(&["a"], [["-".to_owned()]]), "a\n-\n");
        for number in ["-5", "-4.50", "-0.005"] {
            assert_eq!(
                table(&["a"], [[number.to_owned()]]),
                format!("a\n{number}\n")
            );
        }
        let quoted = ["=HYPERLINK(\"http://x\",\"y\")".to_owned()];
        assert_eq!(
            table(&["a"], [quoted]),
            "a\n\"'=HYPERLINK(\"\"http://x\"\",\"\"y\"\")\"\n"
        );
    }
}
