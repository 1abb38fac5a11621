//! The rule files that ship in the program.

/// Their names and texts.
pub const PRESETS: &[(&str, &str)] = &[
    ("default", include_str!("../presets/default.toml")),
    ("accept-edits", include_str!("../presets/accept-edits.toml")),
    ("plan", include_str!("../presets/plan.toml")),
    ("trusted", include_str!("../presets/trusted.toml")),
];

/// The text of a preset.
pub fn preset(name: &str) -> Option<&'static str> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// What a preset is for: the comment that it begins with.
pub fn summary(text: &str) -> &str {
    text.lines().next().and_then(|line| line.strip_prefix('#')).map_or("", str::trim)
}
