//! Pagination and filters for lists of sandboxes and snapshots.

use std::num::NonZeroUsize;
use std::str::FromStr;

use jiff::Timestamp;
use ringfence_proto::query::{UrlQuery, percent_decode};

use crate::api::reply::Refusal;
use crate::lifecycle::expiry::SandboxState;
use crate::storage::store::SandboxRecord;

/// Maximum and default number of entries on a page.
const MAX_PAGE_ENTRIES: usize = 100;

/// Filter and page that a client asks for.
#[derive(Debug)]
pub(crate) struct ListFilter {
    /// Pairs that the metadata of a sandbox must contain. Each pair has two readings, as given and
    /// decoded once more, because E2B's SDKs encode the pairs twice.
    metadata: Vec<[(String, String); 2]>,
    states: Vec<SandboxState>,
    template: Option<String>,
    started_after: Option<Timestamp>,
    cursor: PageRequest,
}

/// Page that a client asks for.
#[derive(Debug)]
pub(crate) struct PageRequest {
    order: SortOrder,
    limit: usize,
    /// Position of the last entry on the page before.
    after: Option<ListPosition>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SortOrder {
    OldestFirst,
    NewestFirst,
}

/// Position of an entry in the order of all entries. No two entries have the same position.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ListPosition {
    since: Timestamp,
    id: String,
}

/// Entries of one page, with the token of the next page.
#[derive(Debug)]
pub(crate) struct Page<T> {
    pub(crate) shown: Vec<T>,
    pub(crate) next: Option<String>,
}

impl ListFilter {
    /// Parses the filter from the query of a request.
    pub(crate) fn from_query(query: &UrlQuery) -> Result<ListFilter, Refusal> {
        let wrong =
            |name: &str| Refusal::wrong(format!("the query parameter `{name}` is not valid"));
        let metadata = match query.get("metadata") {
            Some(text) => UrlQuery::parse(text).map_err(|_| wrong("metadata"))?,
            None => UrlQuery::default(),
        };
        let state = |name| {
            SandboxState::ALL
                .into_iter()
                .find(|state| state.name() == name)
                .ok_or_else(|| wrong("state"))
        };
        let named =
            query.all("state").flat_map(|states| states.split(',')).filter(|name| !name.is_empty());
        let states: Vec<SandboxState> = named.map(state).collect::<Result<_, Refusal>>()?;
        Ok(ListFilter {
            metadata: metadata.pairs().map(readings).collect(),
            states: if states.is_empty() { SandboxState::ALL.to_vec() } else { states },
            template: query
                .get("template")
                .filter(|template| !template.is_empty())
                .map(str::to_owned),
            started_after: parsed(query, "startedAfter")?,
            cursor: PageRequest::from_query(query)?,
        })
    }

    /// Returns the page of the entries in `all` that match the filter.
    pub(crate) fn page<T>(
        &self,
        all: Vec<T>,
        record: impl Fn(&T) -> &SandboxRecord,
        state: impl Fn(&T) -> SandboxState,
    ) -> Page<T> {
        let is_wanted = |one: &T| self.states.contains(&state(one)) && self.is_wanted(record(one));
        let wanted = all.into_iter().filter(is_wanted).collect();
        self.cursor.page(wanted, |one| (record(one).started, record(one).id.as_str()))
    }

    fn is_wanted(&self, record: &SandboxRecord) -> bool {
        let has = |(name, value): &(String, String)| record.metadata.get(name) == Some(value);
        self.metadata.iter().all(|readings| readings.iter().any(has))
            && self.template.as_ref().is_none_or(|template| *template == record.template)
            && self.started_after.is_none_or(|after| record.started > after)
    }
}

/// Returns a pair as given, and as it reads if it was encoded twice.
fn readings((name, value): (&str, &str)) -> [(String, String); 2] {
    let given = (name.to_owned(), value.to_owned());
    let encoded_twice =
        percent_decode(name).zip(percent_decode(value)).unwrap_or_else(|| given.clone());
    [given, encoded_twice]
}

impl PageRequest {
    /// Parses the page from the query of a request.
    pub(crate) fn from_query(query: &UrlQuery) -> Result<PageRequest, Refusal> {
        let limit =
            parsed::<NonZeroUsize>(query, "limit")?.map_or(MAX_PAGE_ENTRIES, NonZeroUsize::get);
        Ok(PageRequest {
            order: match query.get("order") {
                None | Some("" | "desc") => SortOrder::NewestFirst,
                Some("asc") => SortOrder::OldestFirst,
                Some(_) => return Err(Refusal::wrong("the query parameter `order` is not valid")),
            },
            limit: limit.min(MAX_PAGE_ENTRIES),
            after: parsed(query, "nextToken")?,
        })
    }

    /// Returns the page of `all`. `place` returns the time and the id of an entry.
    pub(crate) fn page<T>(&self, all: Vec<T>, place: impl Fn(&T) -> (Timestamp, &str)) -> Page<T> {
        let placed = |one: T| {
            let (since, id) = place(&one);
            (ListPosition { since, id: id.to_owned() }, one)
        };
        let mut shown: Vec<(ListPosition, T)> = all.into_iter().map(placed).collect();
        shown.sort_by(|(left, _), (right, _)| self.order.compare(left, right));
        if let Some(after) = &self.after {
            shown.retain(|(place, _)| self.order.compare(place, after).is_gt());
        }
        let is_last = shown.len() <= self.limit;
        shown.truncate(self.limit);
        let next = shown.last().filter(|_| !is_last).map(|(place, _)| place.to_string());
        Page { shown: shown.into_iter().map(|(_, one)| one).collect(), next }
    }
}

impl SortOrder {
    fn compare(self, left: &ListPosition, right: &ListPosition) -> std::cmp::Ordering {
        match self {
            SortOrder::OldestFirst => left.cmp(right),
            SortOrder::NewestFirst => right.cmp(left),
        }
    }
}

impl std::fmt::Display for ListPosition {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}_{}", self.since, self.id)
    }
}

impl FromStr for ListPosition {
    type Err = ();

    fn from_str(text: &str) -> Result<ListPosition, ()> {
        let (since, id) = text.split_once('_').ok_or(())?;
        Ok(ListPosition { since: since.parse().map_err(drop)?, id: id.to_owned() })
    }
}

/// Parses a query parameter. A missing or empty parameter gives `None`.
pub(crate) fn parsed<T: FromStr>(query: &UrlQuery, name: &str) -> Result<Option<T>, Refusal> {
    let given = query.get(name).filter(|text| !text.is_empty());
    given
        .map(|text| {
            text.parse()
                .map_err(|_| Refusal::wrong(format!("the query parameter `{name}` is not valid")))
        })
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::expiry::{Expiry, ExpiryAction};

    fn record(number: i64) -> SandboxRecord {
        SandboxRecord {
            id: format!("id{number}"),
            template: "base".to_owned(),
            owner: None,
            started: Timestamp::from_second(1000 + number / 2).unwrap(),
            expiry: Expiry::until(Timestamp::MAX),
            at_end: ExpiryAction::Kill,
            is_woken: false,
            token: String::new(),
            traffic_token: None,
            metadata: [
                ("even".to_owned(), (number % 2 == 0).to_string()),
                ("a b".to_owned(), "&=".to_owned()),
            ]
            .into(),
            trace_parent: None,
        }
    }

    #[track_caller]
    fn check(query: &str, expected: &[&str]) -> Option<String> {
        let filter = ListFilter::from_query(&UrlQuery::parse(query).unwrap()).unwrap();
        let page = filter.page(
            (0..5).map(record).collect(),
            |record| record,
            |record| match record.id.as_str() {
                "id0" => SandboxState::Paused,
                _ => SandboxState::Running,
            },
        );
        assert_eq!(
            page.shown.iter().map(|record| record.id.as_str()).collect::<Vec<_>>(),
            expected
        );
        page.next
    }

    #[test]
    fn pages_follow_one_another_and_miss_nothing() {
        assert_eq!(check("", &["id4", "id3", "id2", "id1", "id0"]), None);
        let next = check("limit=2&order=asc", &["id0", "id1"]).unwrap();
        let next = check(&format!("limit=2&order=asc&nextToken={next}"), &["id2", "id3"]).unwrap();
        assert_eq!(check(&format!("limit=2&order=asc&nextToken={next}"), &["id4"]), None);
        assert_eq!(check("limit=5", &["id4", "id3", "id2", "id1", "id0"]), None);
    }

    #[test]
    fn a_page_has_the_entries_that_its_query_selects() {
        check("metadata=even%3Dtrue%26a%2520b%3D%2526%253D", &["id4", "id2", "id0"]);
        check("metadata=even%3Dtrue%26a%252520b%3D%252526%25253D", &["id4", "id2", "id0"]);
        check("metadata=even%3Dmaybe", &[]);
        check("state=paused", &["id0"]);
        check("state=running", &["id4", "id3", "id2", "id1"]);
        check("state=paused,running&limit=1", &["id4"]);
        check("state=paused&state=running&limit=1", &["id4"]);
        check("startedAfter=1970-01-01T00:16:41Z", &["id4"]);
        check("template=other", &[]);
        check("state=", &["id4", "id3", "id2", "id1", "id0"]);
        for wrong in [
            "limit=x",
            "limit=0",
            "state=asleep",
            "state=running,asleep",
            "order=x",
            "nextToken=x",
            "startedAfter=x",
            "metadata=%25",
        ] {
            assert!(ListFilter::from_query(&UrlQuery::parse(wrong).unwrap()).is_err(), "{wrong}");
        }
    }
}
