# Reads "<row> <tab> <broker> <tab> <field> <tab> <value>" lines, one a round, and writes the tables and the goals:
# awk -v tables=FILE -v goals=FILE -v labels="name=label;…" -v rows="a,b" -f judge.awk
BEGIN {
    FS = "\t"
    count = split(labels, parts, ";")
    for (i = 1; i <= count; i++) { at = index(parts[i], "="); order[i] = substr(parts[i], 1, at - 1); label[order[i]] = substr(parts[i], at + 1) }
    brokers = count
}

{ key = $1 SUBSEP $2 SUBSEP $3; value[key, ++n[key]] = $4 + 0 }

function sorted(key,    i, j, held) {
    if (key in done) return
    done[key] = 1
    for (i = 2; i <= n[key]; i++) {
        held = value[key, i]
        for (j = i - 1; j >= 1 && value[key, j] > held; j--) value[key, j + 1] = value[key, j]
        value[key, j + 1] = held
    }
}
function has(row, broker, field) { return n[row SUBSEP broker SUBSEP field] > 0 }
function median(row, broker, field,    key, k) {
    key = row SUBSEP broker SUBSEP field; k = n[key]; sorted(key)
    return (k % 2) ? value[key, (k + 1) / 2] : (value[key, k / 2] + value[key, k / 2 + 1]) / 2
}
# What is drawn of a field: "per_s/1000:%.0f" has a divisor and a format.
function spread(row, broker, field, divisor, format,    key, low, high) {
    if (!has(row, broker, field)) return "–"
    key = row SUBSEP broker SUBSEP field; sorted(key)
    low = value[key, 1] / divisor; high = value[key, n[key]] / divisor
    return sprintf(format " (" format "–" format ")", median(row, broker, field) / divisor, low, high)
}

# table ROW TITLE COLUMNS: columns are "heading=field/divisor:format", separated by ';'; the last is compared with ours.
function table(row, title, columns,    c, k, i, p, spec, head, line, field, divisor, format, main, broker, ours, any) {
    k = split(columns, spec, ";")
    head = "| " title " |"; line = "| --- |"
    for (c = 1; c <= k; c++) { split(spec[c], p, "="); head = head " " p[1] " |"; line = line " --- |"; split(p[2], field, "[/:]") ; main = field[1] }
    any = 0
    for (i = 1; i <= brokers; i++) {
        broker = order[i]
        if (!has(row, broker, main)) continue
        if (!any++) printf "%s glocal / this |\n%s --- |\n", head, line >tables
        printf "| %s |", label[broker] >tables
        for (c = 1; c <= k; c++) { split(spec[c], p, "="); split(p[2], field, "[/:]"); printf " %s |", spread(row, broker, field[1], field[2], field[3]) >tables }
        ours = (broker ~ /^nats/ && has(row, "glocal-nats", main)) ? "glocal-nats" : "glocal"
        if (broker ~ /^glocal/ || !has(row, ours, main)) print " |" >tables
        else printf " %.2f |\n", median(row, ours, main) / median(row, broker, main) >tables
    }
    if (any) print "" >tables
}

function goal(name, measured, bound, met) { printf "goal %s %.3f %.3f %s\n", name, measured, bound, met ? "ok" : "short" >goals }
# ratio NAME ROW OURS FIELD THEIRS BOUND SENSE [FIELD2]: ours over theirs; SENSE is -1 for at most, 1 for at least.
function ratio(name, row, ours, theirs, field, bound, sense,    r) {
    if (!has(row, ours, field) || !has(row, theirs, field)) return
    r = median(row, ours, field) / median(row, theirs, field)
    goal(name, r, bound, sense < 0 ? r <= bound : r >= bound)
}
# Messages a second are the brokers' only while the load had time to spare; else what a core could carry decides.
function rate(name, row, ours, theirs, cpu, bound) {
    if (!has(row, ours, "per_s") || !has(row, theirs, "per_s")) return
    if (median(row, ours, "load_busy") < 0.9 && median(row, theirs, "load_busy") < 0.9) ratio(name, row, ours, theirs, "per_s", bound, 1)
    else goal(name "_by_cpu", median(row, theirs, cpu) / median(row, ours, cpu), bound, median(row, theirs, cpu) >= bound * median(row, ours, cpu))
}
function most(name, row, broker, field, divisor, bound,    m) {
    if (!has(row, broker, field)) return
    m = median(row, broker, field) / divisor
    goal(name, m, bound, m <= bound)
}
# The best peer's, by the least median.
function no_worse(name, row, ours, field,    i, best) {
    if (!has(row, ours, field)) return
    for (i = 1; i <= brokers; i++)
        if (order[i] !~ /^(glocal|relay)/ && has(row, order[i], field) && (best == "" || median(row, order[i], field) < median(row, best, field))) best = order[i]
    if (best != "") ratio(name "_vs_" best, row, ours, best, field, 1, -1)
}

END {
    cpu = "broker_cpu_s_per_million"
    flow = "thousand messages/s=per_s/1000:%.0f;load busy=load_busy/1:%.2f;broker CPU s a million=" cpu "/1:%.3f"
    table("pair-16", "1→1, 16 B", flow)
    table("pair-256", "1→1, 256 B", flow)
    table("pair-1024", "1→1, 1 KiB", flow)
    table("request", "request/reply, 256 B", "p99 µs=p99_us/1:%.0f;broker CPU µs each=" cpu "/1:%.0f;p50 µs=p50_us/1:%.0f")
    table("connect", "new mTLS connections", "each second=per_s/1:%.0f;load busy=load_busy/1:%.2f;broker CPU ms each=" cpu "/1000:%.3f")
    table("idle", "idle mTLS connections", "KiB each=kib_per_connection/1:%.1f")
    table("fanout", "1→1000, 256 B", "thousand deliveries/s=per_s/1000:%.0f;load busy=load_busy/1:%.2f;broker CPU s a million deliveries=" cpu "/1:%.3f")
    table("link", "across one link, 256 B", "thousand messages/s=per_s/1000:%.0f;load busy=load_busy/1:%.2f;CPU s a million, subscriber's broker=far_cpu_s_per_million/1:%.3f;publisher's=" cpu "/1:%.3f")
    table("transit", "across two links, 256 B", "thousand messages/s=per_s/1000:%.0f;CPU s a million, publisher's broker=" cpu "/1:%.3f;subscriber's=far_cpu_s_per_million/1:%.3f;between=middle_cpu_s_per_million/1:%.3f")

    ratio("nats.cpu_16B_vs_2.15", "pair-16", "glocal-nats", "nats-2.15", cpu, 0.5, -1)
    ratio("nats.cpu_256B_vs_2.15", "pair-256", "glocal-nats", "nats-2.15", cpu, 0.25, -1)
    ratio("nats.cpu_256B_vs_2.9", "pair-256", "glocal-nats", "nats-2.9", cpu, 0.55, -1)
    ratio("nats.cpu_1KiB_vs_2.15", "pair-1024", "glocal-nats", "nats-2.15", cpu, 1 / 3, -1)
    rate("nats.rate_256B_vs_2.15", "pair-256", "glocal-nats", "nats-2.15", cpu, 3)
    rate("nats.rate_256B_vs_2.9", "pair-256", "glocal-nats", "nats-2.9", cpu, 1.3)
    no_worse("nats.request_p50", "request", "glocal-nats", "p50_us")
    no_worse("nats.request_p99", "request", "glocal-nats", "p99_us")
    ratio("native.cpu_16B_vs_zenoh", "pair-16", "glocal", "zenoh", cpu, 0.5, -1)
    ratio("native.cpu_256B_vs_zenoh", "pair-256", "glocal", "zenoh", cpu, 0.6, -1)
    ratio("native.cpu_1KiB_vs_zenoh", "pair-1024", "glocal", "zenoh", cpu, 2 / 3, -1)
    ratio("native.cpu_256B_vs_relay", "pair-256", "glocal", "relay", cpu, 2, -1)
    ratio("native.cpu_1KiB_vs_relay", "pair-1024", "glocal", "relay", cpu, 2, -1)
    far = "far_cpu_s_per_million"
    rate("link.rate_vs_zenoh_quic", "link", "glocal", "zenoh-quic", cpu, 1.3)
    rate("link.rate_vs_leaf_2.15", "link", "glocal", "nats-2.15-leaf", cpu, 1.3)
    rate("link.rate_vs_leaf_2.9", "link", "glocal", "nats-2.9-leaf", cpu, 1.3)
    ratio("link.cpu_publisher_side_vs_zenoh_quic", "link", "glocal", "zenoh-quic", cpu, 0.7, -1)
    ratio("link.cpu_subscriber_side_vs_zenoh_quic", "link", "glocal", "zenoh-quic", far, 0.7, -1)
    if (has("transit", "glocal", cpu)) {
        r = median("transit", "glocal", "middle_cpu_s_per_million") / median("transit", "glocal", cpu)
        goal("link.cpu_transit_vs_ingress", r, 1.2, r <= 1.2)
    }
    ratio("fanout.nats_cpu_vs_2.15", "fanout", "glocal-nats", "nats-2.15", cpu, 0.5, -1)
    ratio("fanout.nats_cpu_vs_2.9", "fanout", "glocal-nats", "nats-2.9", cpu, 0.5, -1)
    ratio("fanout.native_cpu_vs_2.15", "fanout", "glocal", "nats-2.15", cpu, 0.5, -1)
    ratio("fanout.native_cpu_vs_2.9", "fanout", "glocal", "nats-2.9", cpu, 0.5, -1)
    most("handshake.native_cpu_ms", "connect", "glocal", cpu, 1000, 0.5)
    most("handshake.nats_cpu_ms", "connect", "glocal-nats", cpu, 1000, 0.5)
    # 20 KB are 19.5 KiB.
    most("idle.native_kib", "idle", "glocal", "kib_per_connection", 1, 19.531)
    most("idle.nats_kib", "idle", "glocal-nats", "kib_per_connection", 1, 19.531)
}
