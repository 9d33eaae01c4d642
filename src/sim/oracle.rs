//! The oracle: what every client may and must receive, from the plan and from what clients asked, never from the engine.
//!
//! Always: nobody receives another tenant's message, or one that was refused, forged or never sent; nothing twice; each
//! publisher's messages of a class in order; at most one member of a queue group. In a calm world, exactly the right ones.

use std::collections::{BTreeMap, BTreeSet};

use glocal_core::name::Class;

use crate::plan::Plan;

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(pub String);

/// Fails with a violation unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        if !$condition {
            return Err($crate::oracle::Violation(format!($($text)*)));
        }
    };
}
pub(crate) use ensure;

/// A message by (publisher, class, number).
pub type MessageId = (u32, u8, u32);

/// A subscription as the client asked for it.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// Raw filter.
    pub filter: String,
    /// The one class, where it asks for one.
    pub class: Option<Class>,
    /// The tenant, `None` for all.
    pub tenant: Option<usize>,
    /// Whether it was asked by a qualified name.
    pub qualified: bool,
    /// Queue group.
    pub queue: Option<String>,
    /// Whether other brokers are not told.
    pub local_only: bool,
    /// Whether it was asked to end after some deliveries; how many may still come is not followed.
    pub max_asked: bool,
    /// Whether the client has ended it.
    pub ended: bool,
    /// Whether it observes: a superuser's outside its own tenant, which counts as nobody.
    pub observer: bool,
    /// Deliveries so far.
    pub delivered: u64,
    /// Whether the world was at rest since it was made, so that every broker knows of it.
    pub settled: bool,
}

impl Subscription {
    /// Whether it wants a message.
    #[must_use]
    pub fn wants(&self, tenant: usize, class: Class, name: &str) -> bool {
        self.tenant.is_none_or(|t| t == tenant)
            && self.class.is_none_or(|c| c == class)
            && filter_matches(&self.filter, name)
    }

    /// Whether it is in force.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        !self.ended
    }
}

/// The oracle's own matcher.
#[must_use]
pub fn filter_matches(filter: &str, name: &str) -> bool {
    let mut names = name.split('.');
    for token in filter.split('.') {
        match (token, names.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (word, Some(other)) if word == other => {}
            _ => return false,
        }
    }
    names.next().is_none()
}

/// A client as the oracle knows it.
#[derive(Clone, Debug)]
pub struct ClientView {
    /// Its tenant.
    pub tenant: usize,
    /// Its broker.
    pub node: usize,
    /// Whether it is a superuser.
    pub superuser: bool,
    /// Whether it hears itself.
    pub echo: bool,
    /// Whether it is connected.
    pub alive: bool,
    /// How subscribers of its tenant are told of it.
    pub text: String,
    /// Its subscriptions, ended ones included until the world rests.
    pub subs: BTreeMap<u32, Subscription>,
}

/// A published message.
#[derive(Clone, Debug)]
pub struct Message {
    /// The tenant it belongs to.
    pub tenant: usize,
    /// Its class.
    pub class: Class,
    /// Its raw name.
    pub name: String,
    /// The node at which it entered.
    pub node: usize,
    /// Whether policy must refuse it.
    pub foreign: bool,
    /// The broker of the requester that it answers.
    pub reply_to: Option<usize>,
    /// Where answers are wanted, if anywhere.
    pub reply: String,
    /// Bytes of payload.
    pub payload_bytes: usize,
    /// Who got it: (client, subscription).
    pub got: BTreeSet<(u32, u32)>,
    /// Members of groups that got it.
    pub groups: BTreeMap<String, u32>,
    /// What became of it at the broker where it entered, once that has read it.
    pub entered: Option<Entered>,
}

/// A message has entered the mesh.
#[derive(Clone, Debug)]
pub struct Entered {
    /// The life of its broker.
    pub life: u64,
    /// The brokers it goes to for plain subscribers, with their lives; its own among them.
    pub chosen: BTreeMap<usize, u64>,
}

/// One delivery as a client saw it.
#[derive(Clone, Debug)]
pub struct Delivered<'d> {
    /// The client.
    pub client: u32,
    /// Name as delivered.
    pub name: &'d str,
    /// Subscriptions.
    pub sids: &'d [u32],
    /// The sender as told.
    pub sender: &'d str,
    /// The class.
    pub class: Class,
    /// The message it claims to be.
    pub id: MessageId,
    /// Bytes of payload.
    pub payload_bytes: usize,
    /// Whether it said that somebody else may have got it before.
    pub redelivered: bool,
}

/// What is known of all clients and messages.
#[derive(Debug, Default)]
pub struct Oracle {
    /// Clients by number.
    pub clients: BTreeMap<u32, ClientView>,
    /// Messages that may be on their way.
    pub messages: BTreeMap<MessageId, Message>,
    /// The last message by client, subscription, publisher, tenant and class.
    last: BTreeMap<(u32, u32, u32, usize, u8), u32>,
}

impl Oracle {
    /// Takes note of one delivery.
    ///
    /// # Errors
    /// The promise it breaks.
    pub fn deliver(&mut self, plan: &Plan, delivered: &Delivered<'_>) -> Result<(), Violation> {
        let Delivered { client, name, sids, sender, class, id, payload_bytes, redelivered } = delivered;
        let publisher = self.clients.get(&id.0).cloned();
        let message = self.messages.get_mut(id);
        let Some((message, publisher)) = message.zip(publisher) else {
            return Err(Violation(format!("client {client} got message {id:?}, which nobody sent")));
        };
        let Some(view) = self.clients.get_mut(client) else {
            return Err(Violation(format!("no client {client}")));
        };
        let (own, of) = (view.tenant, message.tenant);
        ensure!(own == of || view.superuser, "isolation: client {client} of tenant {own} got {id:?} of tenant {of}");
        ensure!(!message.foreign, "client {client} got {id:?}, which policy must have refused");
        ensure!(*class == message.class && *payload_bytes == message.payload_bytes, "message {id:?} was changed");
        let tenant_id = plan.tenants.get(of).map_or("", |t| t.as_str());
        let qualified = format!("T.{tenant_id}.{}.{}", class.as_str(), message.name);
        let publisher_tenant = plan.tenants.get(publisher.tenant).map_or("", |t| t.as_str());
        let expected = if publisher.tenant == of { publisher.text.as_str() } else { publisher_tenant };
        ensure!(*sender == expected, "message {id:?} of {expected} was told to be of {sender}");
        ensure!(!sids.is_empty(), "a delivery for no subscription");
        for sid in *sids {
            let Some(sub) = view.subs.get_mut(sid) else {
                return Err(Violation(format!(
                    "client {client} got {id:?} for subscription {sid}, which it never made"
                )));
            };
            ensure!(sub.wants(of, *class, &message.name), "{} does not match '{}'", message.name, sub.filter);
            let form = if sub.qualified { qualified.as_str() } else { message.name.as_str() };
            ensure!(*name == form, "'{name}' was delivered, '{form}' expected");
            ensure!(message.got.insert((*client, *sid)), "client {client} got {id:?} twice for subscription {sid}");
            sub.delivered += 1;
            // A member that was chosen after another one may have got later messages already.
            // Of the classes that nobody acknowledges only a request has a second choice, when the first one has nobody.
            let may_again = class.is_reliable() || !message.reply.is_empty();
            let again = *redelivered && sub.queue.is_some() && may_again;
            ensure!(again || !redelivered, "message {id:?} says to be redelivered, for subscription {sid}");
            if !again {
                let last = self.last.insert((*client, *sid, id.0, of, id.1), id.2);
                ensure!(last.is_none_or(|last| last < id.2), "order: client {client} got {id:?} after {last:?}");
            }
            if let Some(group) = sub.queue.clone().filter(|_| !sub.observer) {
                let served = message.groups.entry(group.clone()).or_insert(0);
                *served += 1;
                let twice = again && class.is_reliable();
                ensure!(twice || *served <= 1, "message {id:?} went to {served} members of group '{group}'");
            }
        }
        Ok(())
    }

    /// Who must get a message in a world where nothing changes and nothing fails: plain subscriptions, and for every
    /// group those of which exactly one must.
    fn expected(&self, plan: &Plan, message: &Message, publisher: u32) -> (BTreeSet<(u32, u32)>, GroupChoices) {
        let hops = plan.distances(message.node, message.tenant);
        let mut plain = BTreeSet::new();
        let mut groups: BTreeMap<String, Vec<(u32, u32, u32)>> = BTreeMap::new();
        for (client, view) in self.clients.iter().filter(|(_, v)| v.alive) {
            let Some(distance) = hops.get(view.node).copied().flatten() else { continue };
            if *client == publisher && !view.echo {
                continue;
            }
            for (sid, sub) in &view.subs {
                if !sub.is_live() || !sub.wants(message.tenant, message.class, &message.name) {
                    continue;
                }
                if sub.local_only && distance > 0 && message.reply_to != Some(view.node) {
                    continue;
                }
                match sub.queue.as_ref().filter(|_| !sub.observer) {
                    Some(group) => groups.entry(group.clone()).or_default().push((distance, *client, *sid)),
                    None => {
                        plain.insert((*client, *sid));
                    }
                }
            }
        }
        let nearest = |members: Vec<(u32, u32, u32)>| {
            let best = members.iter().map(|m| m.0).min();
            members.into_iter().filter(|m| Some(m.0) == best).map(|(_, client, sid)| (client, sid)).collect()
        };
        (plain, groups.into_iter().map(|(group, members)| (group, nearest(members))).collect())
    }

    /// Whether a request would find anybody who counts.
    #[must_use]
    pub fn has_responders(&self, plan: &Plan, message: &Message, publisher: u32) -> bool {
        let (plain, groups) = self.expected(plan, message, publisher);
        let counts = |(client, sid): &(u32, u32)| {
            self.clients.get(client).and_then(|v| v.subs.get(sid)).is_some_and(|sub| !sub.observer)
        };
        plain.iter().any(counts) || !groups.is_empty()
    }

    /// Checks that every message went exactly where it must, after a phase in which nothing changed or failed. As many copies
    /// of reliable classes as were `left_out`, since there was no room on the way for those who only observe, may be missing.
    ///
    /// # Errors
    /// The first that did not.
    pub fn check_exact(&self, plan: &Plan, left_out: u64) -> Result<(), Violation> {
        let mut spared = BTreeSet::new();
        for (id, message) in self.messages.iter().filter(|(_, m)| !m.foreign) {
            let (plain, groups) = self.expected(plan, message, id.0);
            let mut got = message.got.clone();
            for (group, members) in &groups {
                let served: Vec<_> = got.intersection(members).copied().collect();
                let [member] = served[..] else {
                    return Err(Violation(format!(
                        "message {id:?} '{}' went to {served:?} of group '{group}' {members:?}",
                        message.name
                    )));
                };
                got.remove(&member);
            }
            let mut missing: Vec<_> = plain.difference(&got).collect();
            missing.retain(|(client, sid)| {
                let view = self.clients.get(client);
                let far = view.filter(|view| message.class.is_reliable() && view.node != message.node);
                let Some(view) = far.filter(|view| view.subs.get(sid).is_some_and(|sub| sub.observer)) else {
                    return true;
                };
                let copy = (*id, view.node);
                let is_spared = spared.contains(&copy) || (spared.len() as u64) < left_out;
                if is_spared {
                    spared.insert(copy);
                }
                !is_spared
            });
            let surplus: Vec<_> = got.difference(&plain).collect();
            ensure!(
                missing.is_empty() && surplus.is_empty(),
                "message {id:?} '{}' of node {}: missing {missing:?}, surplus {surplus:?}",
                message.name,
                message.node
            );
        }
        Ok(())
    }

    /// Checks, after whatever has happened, that none of `ctrl` and `bulk` was lost between brokers that have lived on: what
    /// was sent to a broker has reached every subscription there that was there all the time. `lives` are the brokers'.
    ///
    /// # Errors
    /// The first that was lost.
    pub fn check_kept(&self, lives: &[u64]) -> Result<u64, Violation> {
        let mut checked = 0;
        let reliable = self.messages.iter().filter(|(_, m)| m.class.is_reliable() && !m.foreign);
        for (id, message) in reliable {
            let lives_on = |node: usize, life: u64| lives.get(node) == Some(&life);
            let Some(entered) = message.entered.as_ref().filter(|e| lives_on(message.node, e.life)) else { continue };
            for (number, view) in self.clients.iter().filter(|(_, v)| v.alive) {
                let same_life = entered.chosen.get(&view.node).is_some_and(|life| lives_on(view.node, *life));
                if !same_life || (*number == id.0 && !view.echo) {
                    continue;
                }
                let must = |sub: &Subscription| {
                    let always_there = sub.settled && sub.is_live() && !sub.max_asked;
                    let plain = sub.queue.is_none() && !sub.observer && !sub.local_only;
                    always_there && plain && sub.wants(message.tenant, message.class, &message.name)
                };
                for (sid, _) in view.subs.iter().filter(|(_, sub)| must(sub)) {
                    checked += 1;
                    let got = message.got.contains(&(*number, *sid));
                    ensure!(got, "message {id:?} '{}' was lost on its way to client {number}", message.name);
                }
            }
        }
        Ok(checked)
    }

    /// Forgets what is over, as the world is at rest.
    pub fn rest(&mut self) {
        self.messages.clear();
        for view in self.clients.values_mut() {
            if view.alive {
                view.subs.values_mut().for_each(|sub| sub.settled = true);
                view.subs.retain(|_, sub| sub.is_live());
            } else {
                view.subs.clear();
            }
        }
    }
}

type GroupChoices = BTreeMap<String, BTreeSet<(u32, u32)>>;
