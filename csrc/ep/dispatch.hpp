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
    return true;
}

// Tells each peer how many rows will go to each expert, and which combines this rank has read.
template <class Team>
TEAM_FN bool announce(const Team& team, const DispatchArgs& args) {
    const std::uint32_t epoch = args.progress->dispatched + 1;
    const std::uint64_t desk = args.window.desk(args.shape.rank);
    const std::uint64_t own_counts = args.window.counts_of(epoch, args.shape.rank);
    const std::uint64_t own_greeting = desk + offsetof(Desk, greeting) + epoch % 2 * sizeof(Greeting);
    args.peers.each([&](int peer) {
        auto* counts = args.peers.at<std::uint16_t>(peer, own_counts);
        team.lanes(args.shape.num_experts,
                   [&](int e) { counts[e] = static_cast<std::uint16_t>(args.ledger.counts[e]); });
        team.once([&] { *args.peers.at<Greeting>(peer, own_greeting) = greeting_of(args); });
        ship(team, args.peers, {peer, own_counts}, static_cast<std::uint64_t>(args.shape.num_experts) * 2);
        ship(team, args.peers, {peer, own_greeting}, sizeof(Greeting));
    });
    if (args.peers.can_shrink()) tell_view(team, args, epoch);
    publish_all(team, args.peers,
                {Word{desk + offsetof(Desk, consumed), args.progress->consumed, 0},
                 Word{desk + offsetof(Desk, counts), epoch, 0}});
    return true;
}

// All peers have spoken, and of the same exchange.
template <class Team>
TEAM_FN bool hear(const Team& team, const DispatchArgs& args, std::uint32_t epoch) {
    const auto signal = [&](int source) { return args.window.desk(source) + offsetof(Desk, counts); };
    if (!await_all(team, args.peers, epoch, signal, args.policy, args.verdict->wait,
                   static_cast<std::uint32_t>(Phase::counts)))
        return false;
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

template <class Team>
TEAM_FN void place_rows(const Team& team, const DispatchArgs& args, std::uint32_t epoch) {
    const Shape& shape = args.shape;
    const NumberTable counts{args.peers.mine<std::byte>(args.window.counts_of(epoch, 0)),
                             args.window.counts_stride, shape.num_ranks, args.peers.mask};
    const bool grants = args.peers.can_shrink();
    // The first row of this rank's tokens at each expert: after those of the sources before it.
    if (!grants) sum_rows(team, counts, shape.rank, shape.num_experts, args.ledger.base);
    // What will arrive for the experts of this rank. Kept here: peers may overwrite their counts before it is
    // unpacked.
    scan_rows(
        team, counts, shape.first_local(), shape.num_local(),
        [&](int local, int source, std::uint32_t begin, std::uint32_t number) {
            args.layout_range[local * shape.num_ranks + source] =
                static_cast<std::int64_t>(begin) << 32 | number;
            if (grants) write_grant(args, epoch, source, local, begin);
        },
        [&](int local, std::uint32_t total) {
            args.ledger.received[local] = total;
            args.recv_count[local] = static_cast<std::int32_t>(total);
        });
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
    if (heard) place_rows(team, args, epoch);
    team.sync();
    return heard && (!args.peers.can_shrink() || exchange_grants(team, args, epoch));
}

// The place of each choice's row at its owner, counted over all experts there; -1: no choice.
template <class Team>
TEAM_FN auto rows_of(const Team& team, const DispatchArgs& args, int token) {
    const int first = token * args.shape.num_topk;
    return team.fan(args.shape.num_topk, [&](int k) {
        const int expert = args.ledger.experts[first + k];
        if (expert < 0 || !args.ledger.serves(expert)) return std::int64_t{-1};
        return static_cast<std::int64_t>(
            args.shape.row_index(args.shape.local(expert), args.ledger.row(first + k, expert)));
    });
}

template <class Team>
TEAM_FN void send_token(const Team& team, const DispatchArgs& args, const RecvLayout& layout, int token) {
    if (!is_member(team, args.peers)) return;  // others have given these rows away
    const Shape& shape = args.shape;
    const bf16* x = args.x + static_cast<std::int64_t>(token) * shape.hidden;
    std::byte* label = team.stage(Label::bytes(shape));
    const auto rows = rows_of(team, args, token);
    const auto places = [&](std::uint64_t part, std::uint64_t bytes) {
        return team.fan(shape.num_topk, [&](int k) -> std::byte* {
            if (rows.mine(k) < 0) return nullptr;
            const int peer = shape.owner(args.ledger.experts[token * shape.num_topk + k]);
            const std::uint64_t row = static_cast<std::uint64_t>(rows.mine(k)) * bytes;
            return args.peers.at<std::byte>(peer, args.recv() + part + row);
        });
    };
    const auto targets = places(layout.x, shape.row_bytes());
    if (shape.is_fp8())
        quantize_to(team, targets, shape.num_topk, label, x, shape.num_groups(), shape.format, args.store);
    else
        put_to(team, targets, shape.num_topk, reinterpret_cast<const std::byte*>(x), shape.row_bytes(),
               args.store);
    const auto origin = [&](int k) {
        return Origin{static_cast<std::uint32_t>(shape.rank), static_cast<std::uint16_t>(token),
                      static_cast<std::uint16_t>(k)};
    };
    put_patched(team, places(layout.labels, Label::bytes(shape)), shape.num_topk,
                Patched{label, Label::bytes(shape), Label::origin_offset(shape)}, origin, args.store);
}

template <class Team>
TEAM_FN void send(const Team& team, const DispatchArgs& args) {
    const RecvLayout layout = RecvLayout::carve(args.shape);
    team.share(args.num_tokens, [&](int token) { send_token(team, args, layout, token); });
    settle(team);
}

// This rank's rows for an expert lie side by side, and so do their labels.
template <class Team>
TEAM_FN void ship_rows(const Team& team, const DispatchArgs& args) {
    const Shape& shape = args.shape;
    const RecvLayout layout = RecvLayout::carve(shape);
    for (int expert = 0; expert < shape.num_experts; ++expert) {
        const int peer = shape.owner(expert);
        const std::uint64_t count = args.ledger.counts[expert];
        if (count == 0 || !args.peers.is_linked(peer) || !args.ledger.serves(expert)) continue;
        const std::uint64_t first = shape.row_index(shape.local(expert), args.ledger.base[expert]);
        const auto part = [&](std::uint64_t offset, std::uint64_t bytes) {
            ship(team, args.peers, {peer, args.recv() + offset + first * bytes}, count * bytes);
        };
        part(layout.x, shape.row_bytes());
        part(layout.labels, Label::bytes(shape));
    }
}

template <class Team>
TEAM_FN bool deliver(const Team& team, const DispatchArgs& args) {
    if (!is_member(team, args.peers, args.progress->dispatched, args.verdict->wait,
                   static_cast<std::uint32_t>(Phase::rows)))
        return false;
    if (args.peers.has_links()) ship_rows(team, args);
    const std::uint64_t desk = args.window.desk(args.shape.rank);
    publish_all(team, args.peers, {Word{desk + offsetof(Desk, rows), args.progress->dispatched, 0}});
    return true;
}

template <class Team>
TEAM_FN bool await_rows(const Team& team, const DispatchArgs& args) {
    const auto signal = [&](int source) { return args.window.desk(source) + offsetof(Desk, rows); };
    if (!await_all(team, args.peers, args.progress->received[args.recv_slot], signal, args.policy,
                   args.verdict->wait, static_cast<std::uint32_t>(Phase::rows)))
        return false;
    if (args.peers.can_shrink()) close_gaps(team, args);
    return true;
}

template <class Team>
TEAM_FN void unpack_rows(
    const Team& team, const DispatchArgs& args, const RecvLayout& layout, std::uint64_t first, int count) {
    const Shape& shape = args.shape;
    const std::uint64_t label_bytes = Label::bytes(shape);
    const auto* labels = args.peers.mine<std::byte>(args.recv() + layout.labels + first * label_bytes);
    auto* src_info = args.peers.mine<std::int32_t>(args.recv() + layout.src_info) + first;
    if (shape.scale_words() != 0 && args.columns) {
        const std::uint64_t row = first % shape.max_rows();
        auto* columns = args.peers.mine<std::uint32_t>(args.recv() + layout.scales) +
                        (first - row) * static_cast<std::uint64_t>(shape.scale_words()) + row;
        transpose(team,
                  WordMatrix{labels, label_bytes, columns, shape.max_rows(), count, shape.scale_words()});
    }
    team.lanes(count, [&](int row) {
        const std::byte* origin =
            labels + static_cast<std::uint64_t>(row) * label_bytes + Label::origin_offset(shape);
        src_info[row] = reinterpret_cast<const Origin*>(origin)->token;
    });
}

template <class Team>
TEAM_FN void unpack(const Team& team, const DispatchArgs& args) {
    const RecvLayout layout = RecvLayout::carve(args.shape);
    const std::uint32_t* received = args.ledger.received;
    team.share_blocks(args.shape.num_local(), received, kUnpackRows, [&](int local, int row, int count) {
        unpack_rows(team, args, layout, args.shape.row_index(local, static_cast<std::uint64_t>(row)), count);
        if (row == 0 && args.stats != nullptr)
            team.once([&] { args.stats[local] += static_cast<std::int32_t>(received[local]); });
    });
    settle(team);
}

DEEP_LL_TIER_END
