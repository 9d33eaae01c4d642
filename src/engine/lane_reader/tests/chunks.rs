//! However a stream is cut or garbled (RB-58, RB-59).

use proptest::prelude::*;

use super::*;

/// A stream with several lanes, senders, groups, records, a refused lane and a reset in the middle of a frame.
fn stream() -> BytesMut {
    let mut out = slice(1, Some((Class::Live, "tenantA")), &announce());
    out.unsplit(slice(2, Some((Class::Ctrl, "tenantA")), &announce()));
    let record = Presence { origin: REGION_B, incarnation: 7, seq: 3, present: true };
    out.unsplit(slice(2, None, &encode(&record.into())));
    out.unsplit(slice(3, Some((Class::Live, "tenantB")), b"whatever"));
    for seq in 1..=6 {
        let message = Relayed { payload: &[b'a'; 700], ..relayed(seq, &[(REGION_A, &["w"])]) }.encode();
        let (head, tail) = message.split_at(100);
        out.unsplit(slice(1, None, head));
        let other = Relayed { class: Class::Ctrl, sender: OTHER_SENDER, ..relayed(seq, OWN) };
        out.unsplit(slice(2, None, &other.encode()));
        out.unsplit(slice(1, None, tail));
    }
    out.unsplit(slice(1, None, &relayed(7, OWN).encode()[..20]));
    out.unsplit(reset(1));
    let mut lane = announce();
    lane.unsplit(relayed(8, OWN).encode());
    out.unsplit(slice(4, Some((Class::Live, "tenantA")), &lane));
    out
}

/// Everything the stream brings about, cut at `cuts`.
fn outcome(bytes: &[u8], cuts: &[usize]) -> (Vec<Vec<String>>, Vec<Outcome>, u64, Result<(), BridgeFault>) {
    let mut node = Node::new(1);
    node.up(0, 0);
    let mut clients: Vec<_> = (0..3).map(|i| node.client("tenantA", &format!("c{i}"))).collect();
    clients[0].say(&mut node, subscribe(1, ">"));
    clients[1].say(&mut node, in_group(1, "x.>", "w"));
    clients[2].say(&mut node, in_group(1, "x.>", "w"));
    let mut reader = node.reader(0);
    let mut outcomes = Vec::new();
    let mut result = Ok(());
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % bytes.len()).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    for pair in cuts.windows(2) {
        match arrive(&mut node, &mut reader, &bytes[pair[0]..pair[1]]) {
            Ok(more) => outcomes.extend(more),
            Err(fault) => {
                result = Err(fault);
                break;
            }
        }
    }
    (clients.iter_mut().map(|c| messages(&c.read())).collect(), outcomes, refused(&node), result)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn cuts_change_nothing(cuts in prop::collection::vec(any::<usize>(), 0..200)) {
        let bytes = stream();
        let whole = outcome(&bytes, &[]);
        prop_assert_eq!(whole.0[0].len(), 13);
        prop_assert_eq!(whole.0[1].len() + whole.0[2].len(), 6);
        prop_assert_eq!(whole, outcome(&bytes, &cuts));
    }

    #[test]
    fn garbled_bytes_never_panic(
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..12),
        cuts in prop::collection::vec(any::<usize>(), 0..8),
    ) {
        let mut bytes = stream();
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        let _ = outcome(&bytes, &cuts);
    }

    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 1..400)) {
        let _ = outcome(&bytes, &[]);
    }
}

#[test]
fn one_byte_at_a_time_changes_nothing() {
    let bytes = stream();
    let cuts: Vec<usize> = (0..bytes.len()).collect();
    assert_eq!(outcome(&bytes, &[]), outcome(&bytes, &cuts));
}
