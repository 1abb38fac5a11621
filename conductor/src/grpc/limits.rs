//! The `Limits` service: what users and teams have used, and what they may.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tonic::{Request, Response, Status};

use super::rights::Admitted;
use crate::{
    config::Quota,
    frame::escape,
    identity::Party,
    limits::{Limits, Statement, Used},
    proto::{
        self, GetUsageRequest, GetUsageResponse, PartyUsage, UsageLimits, UsedSums, limits_server, party,
    },
};

/// Millionths of money.
const MICROS: f64 = 1e6;

#[derive(Debug)]
pub(super) struct LimitsService {
    limits: Limits,
}

impl LimitsService {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits }
    }
}

#[tonic::async_trait]
impl limits_server::Limits for LimitsService {
    async fn get_usage(
        &self,
        request: Request<GetUsageRequest>,
    ) -> Result<Response<GetUsageResponse>, Status> {
        let who = Admitted::of(&request)?;
        let GetUsageRequest { user, team, since_us } = request.into_inner();
        let asked: Vec<_> = [(user, Party::User as fn(String) -> Party), (team, Party::Team)]
            .into_iter()
            .filter(|(name, _)| !name.is_empty())
            .map(|(name, party)| party(name))
            .collect();
        let is_told = |party: &Party| who.sees_all() || party.has(&who.caller);
        let since = match u64::try_from(since_us) {
            Ok(0) => SystemTime::now(),
            Ok(since) => UNIX_EPOCH + Duration::from_micros(since),
            Err(_) => return Err(Status::invalid_argument("since_us: it is before 1970")),
        };
        let all = self
            .limits
            .statements(since, |party| is_told(party) && (asked.is_empty() || asked.contains(party)));
        let mut parties: Vec<PartyUsage> = all.iter().map(told).collect();
        // Who has used nothing yet is told what they may.
        let named = if asked.is_empty() { Party::all_of(&who.caller).collect() } else { asked };
        for party in named {
            if all.iter().any(|statement| statement.party == party) {
                continue;
            }
            if !party.has(&who.caller) {
                let shown = escape(party.to_string().as_bytes(), 120);
                return Err(Status::not_found(format!("nothing is known here of what {shown} has used")));
            }
            parties.push(told(&Statement::nothing(party.clone(), self.limits.quota(&party))));
        }
        Ok(Response::new(GetUsageResponse { parties }))
    }
}

fn told(statement: &Statement) -> PartyUsage {
    let party = match statement.party.clone() {
        Party::User(name) => party::Party::User(name),
        Party::Team(name) => party::Party::Team(name),
    };
    let Quota { sessions, processes, prompts_per_minute, tokens_per_day, cost_per_day } = statement.quota;
    PartyUsage {
        party: Some(proto::Party { party: Some(party) }),
        sessions: statement.sessions,
        processes: statement.processes,
        prompts_last_minute: statement.prompts,
        today: Some(sums(statement.today)),
        since: Some(sums(statement.since)),
        limits: Some(UsageLimits { sessions, processes, prompts_per_minute, tokens_per_day, cost_per_day }),
    }
}

fn sums(used: Used) -> UsedSums {
    let Used { prompts, tokens, cost_micros } = used;
    UsedSums { prompts, tokens, cost: cost_micros as f64 / MICROS }
}
