//! Spans for the collector, and the context that ties them to those of editors
//! and agents.
//!
//! A trace is a turn: it begins with the prompt, has a step for what took time on
//! the way (route, policy, the journal's sync, a process, tool calls), and ends
//! with the answer. Spans are made with an explicit parent and never entered, so
//! that no line of the log finds its way into one. Where nobody collects them,
//! they are disabled, which is one comparison.

use std::{collections::HashMap, fmt};

use opentelemetry::{
    Context,
    propagation::TextMapPropagator as _,
    trace::{SpanContext, TraceContextExt as _},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::{Level, Span, field::Empty, info_span, level_filters::LevelFilter, span_enabled};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::metrics::{Label as _, TurnEnd};

/// What tells these spans from those of the log.
pub const TARGET: &str = "conductor::trace";

/// The level of all of them.
pub const LEVEL: LevelFilter = LevelFilter::INFO;

/// The member that carries the context, in `_meta` as in gRPC metadata.
pub const TRACEPARENT: &str = "traceparent";

/// A context is 55 characters long; what is much longer is something else.
const LONGEST: usize = 128;

/// The place in a trace of their own that a peer has named.
#[derive(Debug, Clone, PartialEq)]
pub struct Parent(SpanContext);

impl Parent {
    /// Reads what a peer says, if that makes sense. Nothing else of it is kept.
    pub fn read(traceparent: &str) -> Option<Self> {
        if traceparent.len() > LONGEST {
            return None;
        }
        let carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
        let named = context.span().span_context().clone();
        named.is_valid().then_some(Self(named))
    }
}

impl fmt::Display for Parent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(named) = self;
        let (trace, span, flags) = (named.trace_id(), named.span_id(), named.trace_flags().to_u8());
        write!(f, "00-{trace}-{span}-{flags:02x}")
    }
}

/// Whether anybody collects spans.
pub fn is_on() -> bool {
    span_enabled!(target: TARGET, Level::INFO, "turn")
}

/// A new trace, or a part of the one that somebody has named.
pub fn root(name: &'static str, parent: Option<&Parent>, session: uuid::Uuid, agent: &str) -> Span {
    let span = info_span!(
        target: TARGET,
        parent: None,
        "turn",
        otel.name = name,
        otel.kind = "server",
        otel.status_code = Empty,
        session.id = %session,
        agent,
        end = Empty,
    );
    if let Some(Parent(named)) = parent
        && !span.is_disabled()
    {
        // It can fail only if there is no layer, and then nobody cares.
        let _ = span.set_parent(Context::new().with_remote_span_context(named.clone()));
    }
    span
}

/// A step on the way; none if there is no trace.
pub fn step(of: &Span, name: &'static str) -> Span {
    if of.is_disabled() {
        return Span::none();
    }
    info_span!(
        target: TARGET,
        parent: of,
        "step",
        otel.name = name,
        otel.status_code = Empty,
        outcome = Empty,
        rule = Empty,
        agent = Empty,
        tool.kind = Empty,
    )
}

/// How a turn has ended.
pub fn ended(span: &Span, end: TurnEnd) {
    span.record("end", end.name());
    if end == TurnEnd::Error {
        span.record("otel.status_code", "ERROR");
    }
}

/// The context that a peer is to go on with.
pub fn traceparent(span: &Span) -> Option<String> {
    if span.is_disabled() {
        return None;
    }
    let context = span.context();
    let own = context.span().span_context().clone();
    own.is_valid().then(|| Parent(own).to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_context_survives_and_nonsense_does_not() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(Parent::read(good).unwrap().to_string(), good);
        // What a later version may add is not handed on.
        let later = format!("01{}-more", &good[2..]);
        assert_eq!(Parent::read(&later).map(|parent| parent.to_string()).as_deref(), Some(good));
        for bad in [
            "",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7-b7ad6b7169203331-01",
            "nonsense",
            &good.repeat(10),
        ] {
            assert_eq!(Parent::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn without_a_collector_there_are_no_spans() {
        let span = root("turn", None, uuid::Uuid::nil(), "demo");
        assert!(!is_on() && span.is_disabled() && step(&span, "route").is_disabled());
        assert_eq!(traceparent(&span), None);
    }
}
