//! Tests of the table against the reference matcher of filters.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::trie::Trie;
use super::*;

fn interest(broker: u32) -> RemoteInterest {
    RemoteInterest { broker: BrokerIndex(broker), queue: None, classes: ClassSet::ALL, observer: false }
}

fn found(trie: &Trie, name: &str) -> BTreeSet<u32> {
    let mut out = BTreeSet::new();
    trie.walk(RawName::parse(name.as_bytes()).unwrap(), &mut |leaf| {
        out.extend(leaf.remotes().map(|r| r.broker.0));
    });
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The trie finds exactly the filters that match, through any history of additions and removals.
    #[test]
    fn the_trie_finds_exactly_what_matches(
        history in prop::collection::vec((any::<bool>(), "(a|b|\\*)(\\.(a|b|\\*)){0,3}(\\.>)?|>"), 1..40),
        names in prop::collection::vec("(a|b|c)(\\.(a|b|c)){0,4}", 8),
    ) {
        let mut trie = Trie::default();
        let mut held = BTreeSet::new();
        let mut filters: Vec<RawFilter> = Vec::new();
        for (add, text) in history {
            let filter = RawFilter::parse(text.as_bytes()).unwrap();
            let number = filters.iter().position(|f| *f == filter).unwrap_or_else(|| { filters.push(filter.clone()); filters.len() - 1 });
            let remote = interest(u32::try_from(number).unwrap());
            let before = trie.clone();
            trie.update(&filter, |leaf| { if add { leaf.insert_remote(&remote) } else { leaf.remove_remote(&remote) } });
            if add { held.insert(number); } else { held.remove(&number); }
            prop_assert_eq!(trie.len(), held.len());
            drop(before);
        }
        for name in &names {
            let raw = RawName::parse(name.as_bytes()).unwrap();
            let expected: BTreeSet<u32> = held.iter().filter(|n| filters[**n].matches(raw)).map(|n| u32::try_from(*n).unwrap()).collect();
            prop_assert_eq!(found(&trie, name), expected, "{}", name);
        }
    }
}

#[test]
fn a_published_table_is_untouched_by_the_next() {
    let mut first = Table::default();
    let filter = RawFilter::parse(b"a.>").unwrap();
    first.add_remote(&filter, &interest(1));
    let mut second = first.next();
    second.remove_remote(&filter, &interest(1));
    assert_eq!((first.filters(), second.filters()), (1, 0));
    assert_eq!(second.generation(), first.generation() + 1);
}
