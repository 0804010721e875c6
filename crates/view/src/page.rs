//! The page of `amphi top --web`: one text with its script, which loads nothing from elsewhere.

/// The page, for a browser.
pub fn page() -> String {
    include_str!("page/page.html").replace("/*SCRIPT*/", include_str!("page/page.js"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    fn fields(value: &Value, found: &mut BTreeSet<String>) {
        for (name, inner) in value["properties"].as_object().into_iter().flatten() {
            found.insert(name.clone());
            fields(inner, found);
        }
        if !value["items"].is_null() {
            fields(&value["items"], found);
        }
    }

    /// Goal: the page needs no other file, and its script reads no field that a sample does not have. Method: addresses
    /// in it; names with an underscore in the script against the schema, which a test of the program holds.
    #[test]
    fn the_page_is_whole() {
        let page = page();
        assert!(page.contains("function start()") && !page.contains("/*SCRIPT*/"));
        for elsewhere in ["http:", "https:", "src=", "url(", "@import", "<link"] {
            assert!(!page.contains(elsewhere), "{elsewhere}");
        }
        let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json/top.json");
        let schema: Value = serde_json::from_str(&std::fs::read_to_string(schema).expect("read")).expect("JSON");
        let mut known = BTreeSet::new();
        fields(&schema, &mut known);
        let script = include_str!("page/page.js");
        let part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let read: BTreeSet<&str> =
            script.split(|c| !part(c)).filter(|word| word.trim_matches('_').contains('_')).collect();
        assert!(read.len() > 30, "{read:?}");
        let unknown: Vec<&&str> = read.iter().filter(|word| !known.contains(**word)).collect();
        assert!(unknown.is_empty(), "the script reads {unknown:?}");
        for id in script.split("place(\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(page.contains(&format!("id=\"{id}\"")), "the page has no {id}");
        }
    }
}
