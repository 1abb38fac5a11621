//! Models and modes, wherever an agent tells of them.

use super::{
    NAME, Step,
    json::{dig, elements, pick, short, text},
};

/// Most options that are looked at.
const MOST_OPTIONS: usize = 256;

impl Step<'_> {
    /// What the answer to opening a session or setting an option says, or an
    /// update: `modes`, `models` of older agents, and the options, which count
    /// most.
    pub(super) fn options(&mut self, json: &str) {
        let [modes, models, options] = pick(json, ["modes", "models", "configOptions"]);
        self.mode(modes.and_then(|modes| dig(modes, &["currentModeId"])));
        self.model(models.and_then(|models| dig(models, &["currentModelId"])));
        for option in options.into_iter().flat_map(elements).take(MOST_OPTIONS) {
            let [id, category, value] = pick(option, ["id", "category", "currentValue"]);
            let category = category.and_then(text).or_else(|| id.and_then(text));
            match category.as_deref() {
                Some("model") => self.model(value),
                Some("mode") => self.mode(value),
                _ => {}
            }
        }
    }

    pub(super) fn mode(&mut self, json: Option<&str>) {
        if let Some(mode) = short(json, NAME) {
            self.session.put("mode", mode.clone());
            self.state.mode = Some(mode);
        }
    }

    fn model(&mut self, json: Option<&str>) {
        if let Some(model) = short(json, NAME) {
            self.session.put("model", model.clone());
            self.state.model = Some(model);
        }
    }
}
