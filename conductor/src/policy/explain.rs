//! What the policy would say to a request, for people, tests and other programs:
//! the same for `conductor policy explain` and for the service.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Absent, Action, Disk, Ground, Policy, Subject, Verdict, normalise, normalise::check_keys};

/// What is asked about. All but `action` may be left out.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Question {
    /// Who asks.
    pub user: Option<String>,
    /// Their teams.
    pub teams: Option<Vec<String>>,
    /// Their role.
    pub role: Option<String>,
    /// The agent.
    pub agent: Option<String>,
    /// The session's mode.
    pub mode: Option<String>,
    /// The session's model.
    pub model: Option<String>,
    /// The session's directory.
    pub cwd: Option<PathBuf>,
    /// The session's roots; its directory if none are given.
    pub roots: Option<Vec<PathBuf>>,
    /// Whether somebody can be asked; true if it is not given.
    pub interactive: Option<bool>,
    /// What would be done.
    pub action: Value,
}

/// The answer.
#[derive(Debug, Clone, Serialize)]
pub struct Explained {
    /// What the rules say.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Which rules these are.
    pub revision: String,
}

impl Question {
    /// Reads a question from JSON.
    pub fn from_json(json: &[u8]) -> Result<Self, String> {
        let unreadable = |why: String| format!("this is not a request as JSON: {why}");
        // Of two keys of the same name, another reader may believe the other.
        check_keys(json).map_err(unreadable)?;
        let question: Self = serde_json::from_slice(json).map_err(|error| unreadable(error.to_string()))?;
        if question.action.is_null() {
            return Err(
                "`action` is missing; give one, as in {\"action\": {\"shell\": \"git status\"}}".into()
            );
        }
        Ok(question)
    }

    /// What the policy says. `here` is where a question without `cwd` is asked; programs are
    /// looked for in `search`.
    pub fn explain(&self, policy: &Policy, here: &Path, search: &[PathBuf]) -> Result<Explained, String> {
        let action = Action::from_json(&self.action).map_err(|why| format!("`action`: {why}"))?;
        // Sessions have resolved directories; one that does not exist is taken as it is.
        let resolved = |path: &Path| {
            let path = here.join(path);
            path.canonicalize().unwrap_or(path)
        };
        let cwd = resolved(self.cwd.as_deref().unwrap_or(here));
        let roots = match &self.roots {
            Some(roots) => roots.iter().map(|root| resolved(root)).collect(),
            None => vec![cwd.clone()],
        };
        let disk = Disk::resolved(roots, search.to_vec(), Absent::default());
        let actions = normalise(&action, &Ground { cwd: &cwd, resolver: &disk });
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let subject = Subject {
            user: text(&self.user),
            teams: self.teams.clone().unwrap_or_default(),
            role: text(&self.role),
            agent: text(&self.agent),
            mode: self.mode.clone(),
            model: self.model.clone(),
            cwd,
        };
        let verdict = policy.evaluate(&subject, &actions);
        let verdict = if self.interactive.unwrap_or(true) { verdict } else { verdict.non_interactive() };
        Ok(Explained { verdict, revision: policy.revision().to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_says_two_things_is_refused() {
        for json in [
            r#"{"action":{"shell":"rm x","shell":"ls"}}"#,
            r#"{"action":{"shell":"rm x"},"action":{"shell":"ls"}}"#,
            r#"{"action":{"permission":{"toolCall":{"rawInput":{"command":"rm x","command":"ls"}}}}}"#,
        ] {
            let refused = Question::from_json(json.as_bytes());
            assert!(refused.is_err_and(|why| why.contains("stands twice")), "{json}");
        }
        assert!(Question::from_json(br#"{"action":{"shell":"ls"}}"#).is_ok());
    }
}
