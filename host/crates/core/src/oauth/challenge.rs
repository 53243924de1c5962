//! The header `WWW-Authenticate` with which a protected resource asks for a token (RFC 6750 and RFC 9728).

/// The maximum number of scopes that are used. A person has to read them.
pub const SCOPES_MAX: usize = 100;
/// The maximum length of a scope in bytes.
pub const SCOPE_BYTES_MAX: usize = 256;

/// The first challenge for bearer tokens of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BearerChallenge {
    /// The URL of the metadata of the protected resource.
    pub resource_metadata: Option<String>,
    /// The scopes that the request needs. Texts that are not scopes are left out.
    pub scopes: Vec<String>,
    pub error: Option<String>,
}

impl BearerChallenge {
    /// Reads the challenge from the headers of a response. The names of the headers are in lower case.
    pub fn of(headers: &[(String, String)]) -> Option<BearerChallenge> {
        let values = headers.iter().filter(|(name, _)| name == "www-authenticate").map(|(_, value)| value.as_str());
        let parameters = bearer_parameters(&values.collect::<Vec<_>>().join(", "))?;
        let parameter = |wanted: &str| {
            let found = parameters.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| value.clone())
        };
        Some(BearerChallenge {
            resource_metadata: parameter("resource_metadata"),
            scopes: parameter("scope").map(|scope| scopes_of(scope.split(' '))).unwrap_or_default(),
            error: parameter("error"),
        })
    }

    /// Returns whether the token lacks scopes that the request needs (RFC 6750, section 3.1).
    pub fn is_insufficient_scope(&self) -> bool {
        self.error.as_deref() == Some("insufficient_scope")
    }
}

/// Returns the different scopes among these texts, in order.
pub fn scopes_of<'t>(texts: impl IntoIterator<Item = &'t str>) -> Vec<String> {
    let mut scopes: Vec<String> = Vec::new();
    for text in texts {
        if scopes.len() == SCOPES_MAX {
            break;
        }
        if is_scope(text) && !scopes.iter().any(|scope| scope == text) {
            scopes.push(text.to_owned());
        }
    }
    scopes
}

/// Returns whether a text is a scope (RFC 6749, section 3.3).
pub fn is_scope(text: &str) -> bool {
    let is_allowed = |byte: u8| matches!(byte, 0x21 | 0x23..=0x5b | 0x5d..=0x7e);
    !text.is_empty() && text.len() <= SCOPE_BYTES_MAX && text.bytes().all(is_allowed)
}

/// Returns the parameters of the first challenge of the scheme `Bearer`.
fn bearer_parameters(text: &str) -> Option<Vec<(String, String)>> {
    let mut rest = text;
    let mut found: Option<Vec<(String, String)>> = None;
    loop {
        // A challenge may have data that ends with `=` in place of parameters.
        rest = rest.trim_start_matches([' ', '\t', ',', '=']);
        let (token, after) = rest.split_at(rest.find(|c| !is_token_char(c)).unwrap_or(rest.len()));
        if token.is_empty() {
            // The end, or a character that belongs to no challenge.
            return found;
        }
        if let Some(value) = after.trim_start().strip_prefix('=') {
            let (value, after) = parameter_value(value.trim_start());
            if let Some(parameters) = &mut found {
                parameters.push((token.to_owned(), value));
            }
            rest = after;
            continue;
        }
        if found.is_some() {
            // The next challenge begins.
            return found;
        }
        if token.eq_ignore_ascii_case("bearer") {
            found = Some(Vec::new());
        }
        rest = after;
    }
}

/// Reads a token or a quoted string. Returns the rest of the text too.
fn parameter_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let (token, rest) = text.split_at(text.find(|c| !is_token_char(c)).unwrap_or(text.len()));
        return (token.to_owned(), rest);
    };
    let (mut value, mut chars) = (String::new(), quoted.char_indices());
    while let Some((at, character)) = chars.next() {
        match character {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            _ => value.push(character),
        }
    }
    (value, "")
}

fn is_token_char(character: char) -> bool {
    character.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn challenge(values: &[&str]) -> Option<BearerChallenge> {
        let headers = values.iter().map(|value| ("www-authenticate".to_owned(), (*value).to_owned()));
        BearerChallenge::of(&headers.collect::<Vec<_>>())
    }

    #[test]
    fn the_parameters_of_the_first_bearer_challenge_are_read() {
        let url = "https://mcp.example/.well-known/oauth-protected-resource";
        let expected = BearerChallenge {
            resource_metadata: Some(url.to_owned()),
            scopes: vec!["a:read".to_owned(), "b".to_owned()],
            error: Some("invalid_token".to_owned()),
        };
        let text = format!("bearer error=\"invalid_token\", scope = \"a:read b a:read\",resource_metadata=\"{url}\"");
        assert_eq!(challenge(&[&text]), Some(expected.clone()));
        let text = format!("Basic realm=\"a, Bearer scope=x\", {text}, Digest scope=\"c\"");
        assert_eq!(challenge(&[&text]), Some(expected.clone()));
        let texts = ["Negotiate abc==", text.as_str()];
        assert_eq!(challenge(&texts), Some(expected));
        assert_eq!(challenge(&["Bearer"]), Some(BearerChallenge::default()));
        for none in ["", "Basic realm=\"x\"", "=\"Bearer\"", "scope=\"a\""] {
            assert_eq!(challenge(&[none]), None, "{none}");
        }
    }

    #[test]
    fn texts_that_are_no_scopes_are_left_out() {
        let long = "x".repeat(SCOPE_BYTES_MAX + 1);
        let text = format!("Bearer scope=\"a \\\"b\\\" c\u{e9} {long}  d\"");
        assert_eq!(challenge(&[&text]).unwrap().scopes, ["a", "d"]);
        let many: Vec<String> = (0..200).map(|number| number.to_string()).collect();
        assert_eq!(scopes_of(many.iter().map(String::as_str)).len(), SCOPES_MAX);
        // A string that does not end is read to the end of the header.
        assert_eq!(challenge(&["Bearer scope=\"a"]).unwrap().scopes, ["a"]);
        assert_eq!(challenge(&["Bearer scope=\"\\"]).unwrap().scopes, Vec::<String>::new());
    }
}
