//! The fields of a URL's query, or of a form.

/// Names and values, decoded. Bytes that are no UTF-8 become U+FFFD.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(crate) fn parse(encoded: &[u8]) -> Self {
        Self(form_urlencoded::parse(encoded).into_owned().collect())
    }

    /// The first value of a field. A field that is missing is empty.
    pub(crate) fn get(&self, name: &str) -> &str {
        let mut fields = self.0.iter();
        let field = fields.find(|(field, _)| field == name);
        field.map_or("", |(_, value)| value)
    }

    /// The fields, encoded.
    pub(crate) fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(&self.0);
        query.finish()
    }

    /// The value of a field in hexadecimal.
    pub(crate) fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        hex::decode(self.get(name)).ok()
    }
}

/// A query, without the fields that are empty.
pub(crate) fn query(fields: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(fields.iter().filter(|(_, value)| !value.is_empty()));
    query.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_into_a_query_is_read_from_it() {
        let name = "a&b=c/../%00 \u{202e}é+\"<>'#?;";
        let query = query(&[("none", ""), ("name", name), ("from", "00ff")]);
        assert!(query.is_ascii() && !query.contains(['"', '<', '\'', '#', ' ']));
        let fields = Fields::parse(query.as_bytes());
        assert_eq!((fields.get("name"), fields.get("none")), (name, ""));
        assert_eq!(fields.bytes("from"), Some(vec![0, 255]));
        assert_eq!(fields.bytes("name"), None);
    }
}
