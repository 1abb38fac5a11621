//! Where audit events go must be somewhere.

use super::{Checker, Config, ConfigError};

impl Checker<'_> {
    /// Refuses what is no place, and what does not go with it.
    pub(super) fn feed(&self, config: &mut Config) -> Result<(), ConfigError> {
        let feed = &mut config.feed;
        self.count(&["feed", "batch"], feed.batch, 1)?;
        self.not_zero(&["feed", "interval"], feed.interval)?;
        if let Some(mut file) = feed.file() {
            self.path(&["feed", "to"], &mut file)?;
            feed.set_file(&file);
        }
        let is_url = |url: url::Url| matches!(url.scheme(), "http" | "https") && url.has_host();
        if feed.is_address() && !url::Url::parse(&feed.to).is_ok_and(is_url) {
            // It may be a secret with a slip in it.
            let what = "`feed.to` is nowhere that events could go";
            let remedy = "write \"stdout\", \"file:/PATH\" or \"https://HOST/PATH\", or remove the line";
            return Err(self.origins.refuse(&["feed", "to"], what, remedy));
        }
        for (key, file) in [("headers_file", &mut feed.headers_file), ("ca_file", &mut feed.ca_file)] {
            if let Some(file) = file {
                self.path(&["feed", key], file)?;
            }
        }
        Ok(())
    }
}
