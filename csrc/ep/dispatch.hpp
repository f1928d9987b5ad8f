// dispatch.hpp: tokens to the ranks of their experts. Counts first, then each row straight to its final
// place.
//
//   announce  this rank's counts, to every peer                            -> signal counts
//   place     when all counts are here: the first row of each expert, the layout of what will come
//   send      each token is encoded once and put into the row of every expert it chose
//   deliver   all rows of this rank are where they belong                   -> signal rows
//   unpack    when all rows are here: scales into columns, origins into src_info
//
// Rows of an expert are in the order (source rank, token): counts decide the place, not arrival.
#pragma once

#include "ep/shrink.hpp"

DEEP_LL_TIER_BEGIN

constexpr int kUnpackRows = 64;  // that are unpacked together

TEAM_FN Greeting greeting_of(const DispatchArgs& args) {
    const Shape& shape = args.shape;
    return {shape.num_experts,
            shape.max_tokens,
            shape.hidden,
            shape.num_topk,
            static_cast<std::uint32_t>(shape.format),
            args.recv_slot};
}
TEAM_FN bool same(const Greeting& a, const Greeting& b) {
    return a.num_experts == b.num_experts && a.max_tokens == b.max_tokens && a.hidden == b.hidden &&
           a.num_topk == b.num_topk && a.format == b.format && a.recv_slot == b.recv_slot;
}

// How many rows go to each expert, and which of them each choice is.
template <class Team>
TEAM_FN bool count(const Team& team, const DispatchArgs& args) {
    enumerate(team, args.ledger.experts, args.num_tokens * args.shape.num_topk, args.ledger.ordinals,
              args.ledger.counts, args.shape.num_experts);
    if constexpr (kShipsLater)
        running_sum(team, args.ledger.counts, args.shape.num_experts, args.ledger.waiting);
    return true;
}

// Tells each peer how many rows will go to each expert, and which combines this rank has read.
template <class Team>
TEAM_FN bool announce(const Team& team, const DispatchArgs& args) {
    const std::uint32_t epoch = args.progress->dispatched + 1;
    const std::uint64_t desk = args.window.desk(args.shape.rank);
    const std::uint64_t own_counts = args.window.counts_of(epoch, args.shape.rank);
    const std::uint64_t own_greeting = desk + offsetof(Desk, greeting) + epoch % 2 * sizeof(Greeting);
    // This rank comes first: what goes by a link can be read in its own heap.
    const auto ship_own = [&](int peer, std::uint64_t at, std::uint64_t bytes) {
        ship_from(team, args.peers, {peer, at, {Parcel::counts, epoch}}, args.peers.mine<std::byte>(at),
                  bytes);
    };
    args.peers.each([&](int peer) {
        if (args.peers.is_linked(peer)) {
            ship_own(peer, own_counts, static_cast<std::uint64_t>(args.shape.num_experts) * 2);
            ship_own(peer, own_greeting, sizeof(Greeting));
            return;
        }
        auto* counts = args.peers.at<std::uint16_t>(peer, own_counts);
        team.lanes(args.shape.num_experts,
                   [&](int e) { counts[e] = static_cast<std::uint16_t>(args.ledger.counts[e]); });
        team.once([&] { *args.peers.at<Greeting>(peer, own_greeting) = greeting_of(args); });
    });
    if (args.peers.can_shrink()) tell_view(team, args, epoch);
    publish_all(team, args.peers,
                {Word{desk + offsetof(Desk, consumed), args.progress->consumed, 0},
                 Word{desk + offsetof(Desk, counts), epoch, 0, Parcel::counts}});
    return true;
}

// All peers have spoken, and of the same exchange.
template <class Team>
TEAM_FN bool hear(const Team& team, const DispatchArgs& args, std::uint32_t epoch) {
    const auto signal = [&](int source) { return args.window.desk(source) + offsetof(Desk, counts); };
    // A peer can have heard this rank's counts already, and announce the next ones.
    const Awaited awaited{static_cast<std::uint32_t>(Phase::counts), epoch, 1, Parcel::counts};
    if (!await_all(team, args.peers, awaited, signal, args.policy, args.verdict->wait)) return false;
    const auto greeting = [&](int source) {
        return args.peers.mine<Desk>(args.window.desk(source))->greeting[epoch % 2];
    };
    const int other = team.first(args.shape.num_ranks, [&](int source) {
        return !args.peers.is_masked(source) && !same(greeting(source), greeting_of(args));
    });
    if (other < 0) return true;
    team.once([&] {
        args.verdict->disagreement = {other, Phase::counts, greeting(other), greeting_of(args), 0, 0};
    });
    return false;
}

// What place_rows() left where an expert's count of some source cannot be; 0: all can.
TEAM_FN std::uint32_t too_large(const DispatchArgs& args, int expert) {
    const int local = expert - args.shape.first_local();
    const bool is_local = local >= 0 && local < args.shape.num_local();
    const std::uint32_t base = args.peers.can_shrink() ? 0 : args.ledger.base[expert];
    const std::uint32_t received = is_local ? args.ledger.received[local] : 0;
    return (base | received) < kTooLarge ? 0 : base < kTooLarge ? received : base;
}

template <class Team>
TEAM_FN void blame_count(const Team& team, const DispatchArgs& args, std::uint32_t epoch, int expert) {
    const auto source = static_cast<int>(too_large(args, expert) - kTooLarge);
    const std::uint16_t found = args.peers.mine<std::uint16_t>(args.window.counts_of(epoch, source))[expert];
    blame(team, args,
          {Nonsense::Of::count, source, Phase::counts, expert, found,
           static_cast<std::uint64_t>(args.shape.max_tokens)});
}

// False: a source announced more rows than it can have. Else no row lies beyond the last of its expert: its
// place is below the sum of one number a rank, each at most max_tokens.
template <class Team>
TEAM_FN bool place_rows(const Team& team, const DispatchArgs& args, std::uint32_t epoch) {
    const Shape& shape = args.shape;
    const auto most = static_cast<std::uint32_t>(shape.max_tokens);
    const NumberTable counts{args.peers.mine<std::byte>(args.window.counts_of(epoch, 0)),
                             args.window.counts_stride, shape.num_ranks, args.peers.mask};
    const bool grants = args.peers.can_shrink();
    // The first row of this rank's tokens at each expert: after those of the sources before it.
    if (!grants) sum_rows(team, counts, shape.rank, shape.num_experts, most, args.ledger.base);
    // What will arrive for the experts of this rank. Kept here: peers may overwrite their counts before it is
    // unpacked.
    std::uint32_t bad = 0;  // in the column at hand
    scan_rows(
        team, counts, shape.first_local(), shape.num_local(),
        [&](int local, int source, std::uint32_t begin, std::uint32_t number) {
            if (number > most) bad = kTooLarge + static_cast<std::uint32_t>(source);
            args.layout_range[local * shape.num_ranks + source] = range_of(begin, number);
            if (grants) write_grant(args, epoch, source, local, begin);
        },
        [&](int local, std::uint32_t total) {
            args.ledger.received[local] = bad == 0 ? total : bad;
            args.recv_count[local] = bad == 0 ? static_cast<std::int32_t>(total) : 0;
            bad = 0;
        });
    const int first = team.first(shape.num_experts, [&](int e) { return too_large(args, e) != 0; });
    if (first < 0) return true;
    team.once([&] { blame_count(team, args, epoch, first); });
    return false;
}

template <class Team>
TEAM_FN bool place(const Team& team, const DispatchArgs& args) {
    const std::uint32_t epoch = args.progress->dispatched + 1;
    const bool heard = hear(team, args, epoch);
    team.once([&] {
        args.progress->dispatched = epoch;  // also of a round that failed: it is over
        args.progress->received[args.recv_slot] = epoch;
        if (heard) args.progress->told_consumed = args.progress->consumed;
    });
    if (heard && args.peers.can_shrink()) adopt_views(team, args, epoch);
    const bool placed = heard && place_rows(team, args, epoch);
    team.sync();
    return placed && (!args.peers.can_shrink() || exchange_grants(team, args, epoch));
}

// The place of each choice's row at its owner, counted over all experts there; or, where it is shipped later,
// among those that wait here. -1: no choice.
template <class Team>
TEAM_FN auto rows_of(const Team& team, const DispatchArgs& args, int token) {
    const int first = token * args.shape.num_topk;
    return team.fan(args.shape.num_topk, [&](int k) {
        const int expert = args.ledger.experts[first + k];
        if (expert < 0 || !args.ledger.serves(expert)) return std::int64_t{-1};
        if (args.peers.ships_later(args.shape.owner(expert)))
            return static_cast<std::int64_t>(args.ledger.waiting[expert]) + args.ledger.ordinals[first + k];
        return static_cast<std::int64_t>(
            args.shape.row_index(args.shape.local(expert), args.ledger.row(first + k, expert)));
    });
}

TEAM_FN Origin origin_of(const DispatchArgs& args, int token, int k) {
    return {static_cast<std::uint16_t>(args.shape.rank), dispatch_of(args), static_cast<std::uint16_t>(token),
            static_cast<std::uint16_t>(k)};
}
TEAM_FN int target_of(const DispatchArgs& args, int token, int k) {
    return args.shape.owner(args.ledger.experts[token * args.shape.num_topk + k]);
}

// On a host that has peers behind a link: the row is cast once, into this team's memory, and put to one place
// after the other while caches hold it. (GPUs build such rows side by side, and ship them later.)
template <class Team, class Rows>
TEAM_FN void send_in_turn(
    const Team& team, const DispatchArgs& args, const RecvLayout& layout, int token, const Rows& rows) {
    const Shape& shape = args.shape;
    const bf16* x = args.x + static_cast<std::int64_t>(token) * shape.hidden;
    std::byte* label = team.stage(staged_bytes(shape));
    const std::byte* row = reinterpret_cast<const std::byte*>(x);
    if (shape.is_fp8()) {
        const auto cast = team.fan(1, [&](int) { return label + staged_row(shape); });
        quantize_to(team, cast, 1, label, x, shape.num_groups(), shape.format, Store::cached);
        row = cast.at(0);
    }
    const auto put_part = [&](int k, std::uint64_t part, const std::byte* from, std::uint64_t bytes) {
        const std::uint64_t at = args.recv() + part + static_cast<std::uint64_t>(rows.at(k)) * bytes;
        put_row(team, args.peers, {target_of(args, token, k), at}, from, bytes, args.store);
    };
    for (int k = 0; k < shape.num_topk; ++k) {
        if (rows.at(k) < 0) continue;
        put_part(k, layout.x, row, shape.row_bytes());
        *reinterpret_cast<Origin*>(label + Label::origin_offset(shape)) = origin_of(args, token, k);
        put_part(k, layout.labels, label, Label::bytes(shape));
    }
}

template <class Team>
TEAM_FN void send_token(const Team& team, const DispatchArgs& args, const RecvLayout& layout, int token) {
    if (!is_member(team, args.peers)) return;  // others have given these rows away
    const Shape& shape = args.shape;
    const bf16* x = args.x + static_cast<std::int64_t>(token) * shape.hidden;
    std::byte* label = team.stage(Label::bytes(shape));
    const auto rows = rows_of(team, args, token);
    if constexpr (kCanLink && !kShipsLater)
        if (args.peers.has_links()) return send_in_turn(team, args, layout, token, rows);
    const OutgoingLayout waiting = OutgoingLayout::carve(shape);
    const auto places = [&](std::uint64_t part, std::uint64_t waits, std::uint64_t bytes) {
        return team.fan(shape.num_topk, [&](int k) -> std::byte* {
            if (rows.mine(k) < 0) return nullptr;
            const int peer = target_of(args, token, k);
            const std::uint64_t row = static_cast<std::uint64_t>(rows.mine(k)) * bytes;
            if (args.peers.ships_later(peer))
                return args.peers.mine<std::byte>(args.outgoing() + waits + row);
            return args.peers.at<std::byte>(peer, args.recv() + part + row);
        });
    };
    const auto targets = places(layout.x, waiting.x, shape.row_bytes());
    if (shape.is_fp8())
        quantize_to(team, targets, shape.num_topk, label, x, shape.num_groups(), shape.format, args.store);
    else
        put_to(team, targets, shape.num_topk, reinterpret_cast<const std::byte*>(x), shape.row_bytes(),
               args.store);
    const auto origin = [&](int k) { return origin_of(args, token, k); };
    put_patched(team, places(layout.labels, waiting.labels, Label::bytes(shape)), shape.num_topk,
                Patched{label, Label::bytes(shape), Label::origin_offset(shape)}, origin, args.store);
}

template <class Team>
TEAM_FN bool send(const Team& team, const DispatchArgs& args) {
    const RecvLayout layout = RecvLayout::carve(args.shape);
    team.share(args.num_tokens, [&](int token) { send_token(team, args, layout, token); });
    settle(team);
    return true;
}

// To peers behind a network: this rank's rows for an expert lie side by side, and so do their labels.
template <class Team>
TEAM_FN bool ship_rows(const Team& team, const DispatchArgs& args) {
    const Shape& shape = args.shape;
    const RecvLayout layout = RecvLayout::carve(shape);
    const OutgoingLayout waiting = OutgoingLayout::carve(shape);
    team.share(shape.num_experts, [&](int expert) {
        const int peer = shape.owner(expert);
        const std::uint64_t count = args.ledger.counts[expert];
        if (count == 0 || !args.peers.is_linked(peer) || !args.ledger.serves(expert)) return;
        const std::uint64_t first = shape.row_index(shape.local(expert), args.ledger.base[expert]);
        const auto part = [&](std::uint64_t offset, std::uint64_t waits, std::uint64_t bytes) {
            const Place to{
                peer, args.recv() + offset + first * bytes, {Parcel::rows, args.progress->dispatched}};
            const std::uint64_t from = args.outgoing() + waits + args.ledger.waiting[expert] * bytes;
            ship_from(team, args.peers, to, args.peers.mine<std::byte>(from), count * bytes);
        };
        part(layout.x, waiting.x, shape.row_bytes());
        part(layout.labels, waiting.labels, Label::bytes(shape));
    });
    return true;
}

template <class Team>
TEAM_FN bool deliver(const Team& team, const DispatchArgs& args) {
    if (!is_member(team, args.peers, args.progress->dispatched, args.verdict->wait,
                   static_cast<std::uint32_t>(Phase::rows)))
        return false;
    const std::uint64_t desk = args.window.desk(args.shape.rank);
    publish_all(team, args.peers,
                {Word{desk + offsetof(Desk, rows), args.progress->dispatched, 0, Parcel::rows}});
    return true;
}

template <class Team>
TEAM_FN bool await_rows(const Team& team, const DispatchArgs& args) {
    const auto signal = [&](int source) { return args.window.desk(source) + offsetof(Desk, rows); };
    const std::uint32_t epoch = args.progress->received[args.recv_slot];
    // Rows are sent after this rank's counts of that dispatch were heard.
    const std::uint32_t most_ahead = args.progress->dispatched - epoch;
    const Awaited awaited{static_cast<std::uint32_t>(Phase::rows), epoch, most_ahead, Parcel::rows};
    if (!await_all(team, args.peers, awaited, signal, args.policy, args.verdict->wait)) return false;
    if (args.peers.can_shrink()) close_gaps(team, args);
    return true;
}

// Some rows of a local expert, side by side.
struct Rows {
    int local;
    int first;
    int count;
};

// A row is of this dispatch, and of the source that its place was given to.
TEAM_FN bool is_right(const DispatchArgs& args, const RowPlace& at, const Origin& origin) {
    return origin.is_inside(args.shape) && origin.dispatch == dispatch_of(args) &&
           contains(args.layout_range[at.local * args.shape.num_ranks + origin.source], at.row);
}

template <class Team>
TEAM_FN bool unpack_rows(const Team& team,
                         const DispatchArgs& args,
                         const RecvLayout& layout,
                         const Rows& rows) {
    const Shape& shape = args.shape;
    const std::uint64_t first = shape.row_index(rows.local, static_cast<std::uint64_t>(rows.first));
    const std::uint64_t label_bytes = Label::bytes(shape);
    const auto* labels = args.peers.mine<std::byte>(args.recv() + layout.labels + first * label_bytes);
    auto* src_info = args.peers.mine<std::int32_t>(args.recv() + layout.src_info) + first;
    if (shape.scale_words() != 0 && args.columns) {
        const auto row = static_cast<std::uint64_t>(rows.first);
        auto* columns = args.peers.mine<std::uint32_t>(args.recv() + layout.scales) +
                        (first - row) * static_cast<std::uint64_t>(shape.scale_words()) + row;
        transpose(team, WordMatrix{labels, label_bytes, columns, shape.max_rows(), rows.count,
                                   shape.scale_words()});
    }
    bool right = true;
    team.lanes(rows.count, [&](int row) {
        const std::byte* at =
            labels + static_cast<std::uint64_t>(row) * label_bytes + Label::origin_offset(shape);
        const Origin origin = *reinterpret_cast<const Origin*>(at);
        src_info[row] = origin.token;
        const RowPlace place{rows.local, rows.first + row};
        if (!is_right(args, place, origin))
            right &= blame(team, args, bad_label(args, Phase::rows, place, origin));
    });
    return right;
}

template <class Team>
TEAM_FN bool unpack(const Team& team, const DispatchArgs& args) {
    const RecvLayout layout = RecvLayout::carve(args.shape);
    const std::uint32_t* received = args.ledger.received;
    bool right = true;
    team.share_blocks(args.shape.num_local(), received, kUnpackRows, [&](int local, int row, int count) {
        right &= unpack_rows(team, args, layout, {local, row, count});
        if (row == 0 && args.stats != nullptr)
            team.once([&] { args.stats[local] += static_cast<std::int32_t>(received[local]); });
    });
    settle(team);
    return right;
}

DEEP_LL_TIER_END
