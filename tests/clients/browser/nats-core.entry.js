export { wsconnect } from "@nats-io/nats-core";
