use std::sync::Arc;

use glocal_core::bundle::{EdgeEntry, Head, NodeEntry, Piece, Section, SignedHead};
use glocal_core::identity::KeyId;
use glocal_core::name::NodeId;
use glocal_core::time::UnixTime;

use super::*;

const NOW: Time = Time(0);

fn label(text: &str) -> Label {
    Label::parse(text).unwrap()
}

fn piece(tenant: &str, edges: &[&str], mark: u8, bytes: usize) -> Piece {
    let mut section = Section::new(TenantId::parse(tenant).unwrap(), [mark; 16]);
    section.edges = edges.iter().map(|edge| label(edge)).collect();
    let mut digest = [mark; 32];
    digest.iter_mut().zip(tenant.bytes()).for_each(|(to, from)| *to = from);
    Piece { section: Arc::new(section), digest, bytes: Bytes::from(vec![mark; bytes]) }
}

fn signed(version: u64, mark: u8, pieces: &[Piece]) -> SignedHead {
    let node = |name: &str| NodeId::parse(name).unwrap();
    let tenant = TenantId::parse("ops").unwrap();
    let entry = |name: &str| NodeEntry { node: node(name), tenant: tenant.clone(), issuers: vec![KeyId([1; 32])] };
    let mut head = Head::empty(label("demo"), UnixTime(0), UnixTime(1_000_000));
    head.version = version;
    head.roots = vec![KeyId([9; 32])];
    head.nodes = ["g/a", "g/b"].map(entry).to_vec();
    head.edges = ["one", "two"].map(|name| EdgeEntry { name: label(name), a: node("g/a"), b: node("g/b") }).to_vec();
    head.sections = pieces.iter().map(|piece| piece.digest).collect();
    head.sections.sort_unstable();
    SignedHead {
        head,
        digest: [mark; 32],
        bytes: Bytes::from(vec![mark; 100]),
        signature: Bytes::from(vec![0; 64]),
        certificate: Bytes::from_static(b"certificate"),
    }
}

/// One end: what it holds, and its machine. The heads and sections it may come to hold are known to the test.
struct End {
    holding: Holding,
    gossip: Gossip,
    configured: &'static str,
    arrived: Vec<Arrival>,
}

impl End {
    fn new(version: u64, listed: &[Piece], held: &[Piece]) -> Self {
        let mark = u8::try_from(version).unwrap();
        let holding = Holding::new(signed(version, mark, listed), held.to_vec()).unwrap();
        Self { holding, gossip: Gossip::new(label("one"), NOW), configured: "", arrived: Vec::new() }
    }

    fn allows(tenant: &TenantId, configured: &str) -> bool {
        configured.is_empty() || configured == tenant.as_str()
    }

    fn look(&mut self) {
        let configured = self.configured;
        self.gossip.look(&self.holding, |tenant| Self::allows(tenant, configured), NOW);
    }

    fn next(&mut self) -> Option<Control> {
        let configured = self.configured;
        self.gossip.next(&self.holding, |tenant| Self::allows(tenant, configured))
    }

    fn take(&mut self, control: Control, heads: &[SignedHead], pieces: &[Piece]) {
        match control {
            Control::BundleNews(news) => self.gossip.on_news(news, &self.holding, NOW),
            Control::SectionOffer(offer) => self.gossip.on_offer(&offer, &self.holding, NOW),
            Control::BundleGet(get) => self.gossip.on_get(get).unwrap(),
            Control::BundlePart(part) => {
                if let Some(arrival) = self.gossip.on_part(part, NOW).unwrap() {
                    self.arrived.push(arrival.clone());
                    self.holding = if arrival.is_head {
                        let head = heads.iter().find(|head| head.digest == arrival.digest).unwrap().clone();
                        self.holding.renewed(head, Vec::new(), false, NOW).unwrap()
                    } else {
                        let piece = pieces.iter().find(|piece| piece.digest == arrival.digest).unwrap();
                        assert_eq!(piece.bytes, arrival.bytes, "as it was signed for");
                        self.holding.with([piece.clone()]).unwrap()
                    };
                }
            }
            other => panic!("{}", other.name()),
        }
        self.look();
    }
}

fn run(a: &mut End, b: &mut End, heads: &[SignedHead], pieces: &[Piece]) {
    a.look();
    b.look();
    loop {
        let (from_a, from_b) = (a.next(), b.next());
        if from_a.is_none() && from_b.is_none() {
            return;
        }
        from_a.into_iter().for_each(|control| b.take(control, heads, pieces));
        from_b.into_iter().for_each(|control| a.take(control, heads, pieces));
    }
}

#[test]
fn a_newer_bundle_reaches_the_other_end_with_the_sections_of_this_edge_only() {
    let old = [piece("acme", &["one"], 1, 10), piece("beta", &["two"], 1, 10)];
    let new = [piece("acme", &["two"], 2, 100_000), piece("beta", &["two"], 1, 10), piece("come", &["one"], 2, 10)];
    let head = signed(2, 2, &new);
    let mut a = End::new(1, &old, &old);
    let mut b = End::new(1, &old, &old[..1]);
    a.holding = a.holding.renewed(head.clone(), new.to_vec(), true, NOW).unwrap();
    run(&mut a, &mut b, std::slice::from_ref(&head), &new);
    let sections: BTreeSet<_> = b.holding.pieces().map(|piece| piece.section.tenant.to_string()).collect();
    assert_eq!(sections, ["acme", "come"].map(str::to_owned).into(), "a narrowing and a widening; beta is not for b");
    assert_eq!(b.holding.signed().head.version, 2);
    assert!(!b.holding.bundle().edge_allows(&label("one"), "acme") && b.holding.stale() == 0);
    assert_eq!(b.arrived.len(), 3);
    assert!(a.arrived.is_empty(), "the newer end asks for nothing");
    assert!(b.gossip.is_level(&b.holding) && a.gossip.is_level(&a.holding));
    let mut again = a.gossip.refused;
    a.look();
    again += u64::from(a.gossip.has_next());
    assert_eq!(again, 0, "and then there is silence");
}

#[test]
fn configuration_keeps_sections_from_crossing() {
    let pieces = [piece("acme", &["one"], 1, 10), piece("beta", &["one"], 1, 10)];
    let mut a = End::new(1, &pieces, &pieces);
    let mut b = End::new(1, &pieces, &[]);
    a.configured = "beta";
    run(&mut a, &mut b, &[], &pieces);
    assert_eq!(b.arrived.iter().map(|arrival| arrival.digest).collect::<Vec<_>>(), [pieces[1].digest]);
}

#[test]
fn who_asks_for_what_the_edge_may_not_carry_gets_nothing() {
    let pieces = [piece("acme", &["two"], 1, 10)];
    let mut a = End::new(1, &pieces, &pieces);
    a.gossip.on_get(BundleGet { digests: vec![pieces[0].digest, [77; 32]] }).unwrap();
    for digest in [pieces[0].digest, [77; 32]] {
        let nothing = BundlePart { digest, total: 0, offset: 0, bytes: Vec::new() };
        assert_eq!(a.next(), Some(nothing.into()), "what is forbidden and what is unknown look alike");
    }
    assert_eq!(a.gossip.refused, 1);
    let many = BundleGet { digests: vec![[1; 32]; BUNDLE_DIGESTS_MAX] };
    a.gossip.on_get(many.clone()).unwrap();
    assert_eq!(a.gossip.on_get(BundleGet { digests: vec![[1; 32]] }), Err(GossipFault::TooMany));
}

#[test]
fn nothing_is_taken_that_was_not_asked_for() {
    let mut a = End::new(1, &[], &[]);
    let part = |digest, total, offset, bytes: usize| BundlePart { digest, total, offset, bytes: vec![0; bytes] };
    assert_eq!(a.gossip.on_part(part([5; 32], 10, 0, 5), NOW), Err(GossipFault::Unasked));
    a.gossip.on_news(BundleNews { epoch: 1, version: 9, digest: [5; 32] }, &a.holding, NOW);
    assert!(a.gossip.is_behind(&a.holding));
    assert_eq!(a.gossip.on_part(part([5; 32], 10, 5, 5), NOW), Err(GossipFault::Unasked), "out of order");
    let mut a = End::new(1, &[], &[]);
    a.gossip.on_news(BundleNews { epoch: 1, version: 9, digest: [5; 32] }, &a.holding, NOW);
    assert_eq!(a.gossip.on_part(part([5; 32], 10, 0, 5), NOW), Ok(None));
    assert_eq!(a.gossip.on_part(part([5; 32], 11, 5, 6), NOW), Err(GossipFault::Unasked), "another length");
    assert_eq!(a.gossip.on_part(part([5; 32], 10, 5, 0), NOW), Err(GossipFault::Unasked), "nothing at all");
    assert!(a.gossip.on_part(part([5; 32], 10, 5, 5), NOW).unwrap().unwrap().is_head);
}

#[test]
fn a_head_that_was_not_taken_is_not_asked_for_again_and_an_older_one_never() {
    let mut a = End::new(5, &[], &[]);
    let asks = |a: &mut End| std::iter::from_fn(|| a.next()).any(|control| matches!(control, Control::BundleGet(_)));
    a.gossip.on_news(BundleNews { epoch: 1, version: 4, digest: [4; 32] }, &a.holding, NOW);
    assert!(!asks(&mut a));
    a.gossip.on_news(BundleNews { epoch: 1, version: 5, digest: [9; 32] }, &a.holding, NOW);
    assert!(asks(&mut a), "two of one version: the signature tells who lies");
    let whole = BundlePart { digest: [9; 32], total: 1, offset: 0, bytes: vec![1] };
    a.gossip.on_part(whole, NOW).unwrap().unwrap();
    a.gossip.reject([9; 32]);
    a.look();
    a.gossip.on_news(BundleNews { epoch: 1, version: 5, digest: [9; 32] }, &a.holding, NOW);
    assert!(!asks(&mut a));
}

#[test]
fn what_does_not_come_is_asked_for_again() {
    let mut a = End::new(1, &[], &[]);
    let asks = |a: &mut End| std::iter::from_fn(|| a.next()).any(|control| matches!(control, Control::BundleGet(_)));
    a.gossip.on_news(BundleNews { epoch: 1, version: 2, digest: [2; 32] }, &a.holding, NOW);
    assert!(asks(&mut a));
    a.look();
    assert!(!asks(&mut a), "once is enough while there is hope");
    a.gossip.look(&a.holding, |_| true, Time::from_millis(BUNDLE_TRANSFER_MS_MAX));
    assert!(asks(&mut a));
}
