//! Limits that are no numbers, and names that nobody can have.

use super::{Checker, Config, ConfigError, quoted};
use crate::identity::check_name;

/// More is a slip of the finger.
const MOST_COST: f64 = 1e9;

impl Checker<'_> {
    /// Refuses limits that cannot hold.
    pub(super) fn limits(&self, config: &Config) -> Result<(), ConfigError> {
        let limits = &config.limits;
        self.cost(&["limits", "cost_per_day"], limits.cost_per_day)?;
        for (what, table, quotas) in [("user", "users", &limits.users), ("team", "teams", &limits.teams)] {
            for (name, quota) in quotas {
                if let Err(why) = check_name(what, name) {
                    return Err(self.origins.refuse_table(
                        &["limits", table, name],
                        why,
                        format!("write the {what} as it stands in tokens"),
                    ));
                }
                self.cost(&["limits", table, name, "cost_per_day"], quota.cost_per_day)?;
            }
        }
        Ok(())
    }

    fn cost(&self, at: &[&str], cost: Option<f64>) -> Result<(), ConfigError> {
        if cost.is_none_or(|cost| (0.0..=MOST_COST).contains(&cost)) {
            return Ok(());
        }
        let what = format!("{} is no amount of money", quoted(&at.join(".")));
        Err(self.origins.refuse(at, what, "write a number from 0 on, or remove the line"))
    }
}
