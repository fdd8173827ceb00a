//! Reads the text fields of a `multipart/form-data` body. axum could do it, too, but its feature
//! would bring several crates for a few lines.

use std::collections::HashMap;

/// The fields by their names; `None` if the body is no such form.
pub fn fields(content_type: &str, body: &[u8]) -> Option<HashMap<String, String>> {
    let boundary = content_type
        .strip_prefix("multipart/form-data;")?
        .trim()
        .strip_prefix("boundary=")?
        .trim_matches('"');
    let text = str::from_utf8(body).ok()?;
    let delimiter = format!("--{boundary}");
    let mut parts = text.split(delimiter.as_str());
    // What comes before the first delimiter is no part.
    parts.next().filter(|preamble| preamble.is_empty())?;
    let mut fields = HashMap::new();
    for part in parts {
        if part.starts_with("--") {
            return Some(fields);
        }
        let (head, value) = part.split_once("\r\n\r\n")?;
        let name = head.split_once("name=\"")?.1.split_once('"')?.0;
        fields.insert(name.to_owned(), value.strip_suffix("\r\n")?.to_owned());
    }
    // The last delimiter is missing, so the body was cut off.
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_read_whole_or_not_at_all() {
        let part = "--b\r\ncontent-disposition: form-data; name=\"quantity\"\r\n\r\n2\r\n";
        let read = |body: &str| fields("multipart/form-data; boundary=b", body.as_bytes());
        let form = read(&format!("{part}--b--\r\n")).unwrap();
        assert_eq!(form["quantity"], "2");
        assert_eq!(read(part), None, "cut off");
        assert_eq!(read(""), None);
        assert_eq!(fields("application/json", b"{}"), None);
    }
}
