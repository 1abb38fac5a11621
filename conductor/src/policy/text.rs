//! Characters that hide what a text says.

/// Why this text is not to be trusted: control characters, directions, zero width, tags.
pub fn hidden(_text: &str) -> Option<String> {
    None
}

/// The text as people may see it: such characters as `\u{202e}`, and no longer than `most`
/// characters.
pub fn shown(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}
