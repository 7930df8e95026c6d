//! What `oncegate approvals` prints of calls that wait. A terminal shows no character that hides or moves others.

use crate::console::plain;
use crate::core::record::Record;
use crate::gateway::ShownProposal;

/// One line of the list.
pub(super) fn line(record: &Record) -> String {
    let intent = &record.intent;
    let proposal = record.proposal.as_deref();
    let until = proposal.map_or(String::new(), |asked| format!("{:.0}", asked.until));
    let line = format!(
        "{} {} {} until {until}",
        intent.call_id,
        record.state.as_str(),
        intent.tool
    );
    plain(&line)
}

/// A call as an approver sees it.
pub(super) fn page(shown: &ShownProposal) -> String {
    let record = &shown.record;
    let mut lines = vec![line(record)];
    if let Some(proposal) = record.proposal.as_deref() {
        lines.extend(proposal.why.iter().map(|why| plain(why)));
    }
    lines.push(String::new());
    match &shown.request {
        Some(Ok(request)) => {
            lines.push(match &request.mcp {
                Some((_, tool)) => format!("calls the tool {} with", plain(tool)),
                None => plain(&format!("{} {}", request.method, request.url)),
            });
            lines.push(plain(&String::from_utf8_lossy(&request.body)));
        }
        Some(Err(why)) => lines.push(format!("it cannot be sent as things are: {}", plain(why))),
        None => lines.push("it does not wait any more".to_owned()),
    }
    if let Some(similar) = &shown.similar {
        lines.push(format!("\nit looks like call {}", similar.intent.call_id));
    }
    lines.join("\n") + "\n"
}
