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

#include "ep/args.hpp"
#include "team/quantize.hpp"
#include "team/rearrange.hpp"

DEEP_LL_TIER_BEGIN

TEAM_FN Greeting greeting_of(const Shape& shape) {
    return {shape.num_experts, shape.max_tokens, shape.hidden, shape.num_topk,
            static_cast<std::uint32_t>(shape.format)};
}
TEAM_FN bool same(const Greeting& a, const Greeting& b) {
    return a.num_experts == b.num_experts && a.max_tokens == b.max_tokens && a.hidden == b.hidden &&
           a.num_topk == b.num_topk && a.format == b.format;
}

// How many rows go to each expert, and which of them each choice is.
template <class Team>
bool count(const Team& team, const DispatchArgs& args) {
    enumerate(team, args.ledger.experts, args.num_tokens * args.shape.num_topk, args.ledger.rows,
              args.ledger.counts, args.shape.num_experts);
    return true;
}

// Tells each peer how many rows will go to each expert, and which combines this rank has read.
template <class Team>
bool announce(const Team& team, const DispatchArgs& args) {
    const std::uint32_t epoch = args.progress->dispatched + 1;
    for (int step = 0; step < args.shape.num_ranks; ++step) {
        const int peer = (args.shape.rank + step) % args.shape.num_ranks;
        const std::uint64_t desk = args.window.desk(args.shape.rank);
        auto* counts = args.peers.at<std::uint16_t>(peer, args.window.counts_of(epoch, args.shape.rank));
        team.lanes(args.shape.num_experts,
                   [&](int e) { counts[e] = static_cast<std::uint16_t>(args.ledger.counts[e]); });
        team.once([&] {
            args.peers.at<Desk>(peer, desk)->greeting[epoch % 2] = greeting_of(args.shape);
            return 0;
        });
        publish_quietly(team, args.peers, peer, desk + offsetof(Desk, consumed), args.progress->consumed, 0);
        publish(team, args.peers, peer, desk + offsetof(Desk, counts), epoch, 0);
    }
    return true;
}

// All peers have spoken, and of the same exchange.
template <class Team>
bool hear(const Team& team, const DispatchArgs& args, std::uint32_t epoch) {
    *args.phase = Phase::counts;
    const auto signal = [&](int source) { return args.window.desk(source) + offsetof(Desk, counts); };
    if (!await_all(team, args.peers, epoch, signal, args.policy, *args.report)) return false;
    for (int source = 0; source < args.shape.num_ranks; ++source) {
        const Greeting theirs = args.peers.mine<Desk>(args.window.desk(source))->greeting[epoch % 2];
        if (same(theirs, greeting_of(args.shape))) continue;
        *args.disagreement = {source, theirs, 0};
        return false;
    }
    return true;
}

// The first row of this rank's tokens at each expert: after those of the sources before it.
template <class Team>
TEAM_FN void place_mine(const Team& team, const DispatchArgs& args, std::uint32_t epoch) {
    team.lanes(args.shape.num_experts, [&](int e) { args.ledger.base[e] = 0; });
    for (int source = 0; source < args.shape.rank; ++source) {
        const auto* counts = args.peers.mine<std::uint16_t>(args.window.counts_of(epoch, source));
        team.lanes(args.shape.num_experts, [&](int e) { args.ledger.base[e] += counts[e]; });
    }
}

// What will arrive for the experts of this rank. Kept here: peers may overwrite their counts before it is
// unpacked.
template <class Team>
TEAM_FN void place_theirs(const Team& team, const DispatchArgs& args, std::uint32_t epoch) {
    team.lanes(args.shape.num_local(), [&](int local) {
        std::uint32_t begin = 0;
        for (int source = 0; source < args.shape.num_ranks; ++source) {
            const auto* counts = args.peers.mine<std::uint16_t>(args.window.counts_of(epoch, source));
            const std::uint32_t count = counts[args.shape.first_local() + local];
            args.layout_range[local * args.shape.num_ranks + source] =
                static_cast<std::int64_t>(begin) << 32 | count;
            begin += count;
        }
        args.ledger.received[local] = begin;
        args.recv_count[local] = static_cast<std::int32_t>(begin);
    });
}

template <class Team>
bool place(const Team& team, const DispatchArgs& args) {
    const std::uint32_t epoch = args.progress->dispatched + 1;
    const bool heard = hear(team, args, epoch);
    args.progress->dispatched = epoch;  // also of a round that failed: it is over
    if (!heard) return false;
    args.progress->told_consumed = args.progress->consumed;
    place_mine(team, args, epoch);
    place_theirs(team, args, epoch);
    team.sync();
    return true;
}

// The place of each choice's row at its owner, counted over all experts there; -1: no choice.
template <class Team>
TEAM_FN auto rows_of(const Team& team, const DispatchArgs& args, int token) {
    const int first = token * args.shape.num_topk;
    return team.fan(args.shape.num_topk, [&](int k) {
        const int expert = args.ledger.experts[first + k];
        if (expert < 0) return std::int64_t{-1};
        const std::int32_t row = args.ledger.rows[first + k] +=
            static_cast<std::int32_t>(args.ledger.base[expert]);
        return static_cast<std::int64_t>(
            args.shape.row_index(args.shape.local(expert), static_cast<std::uint64_t>(row)));
    });
}

template <class Team>
TEAM_FN void send_labels(
    const Team& team, const DispatchArgs& args, int token, const Fan<std::byte*>& targets, std::byte* label) {
    auto* origin = reinterpret_cast<Origin*>(label + Label::origin_offset(args.shape));
    for (int k = 0; k < args.shape.num_topk; ++k) {
        if (targets.at(k) == nullptr) continue;
        team.once([&] {
            *origin = {static_cast<std::uint32_t>(args.shape.rank), static_cast<std::uint16_t>(token),
                       static_cast<std::uint16_t>(k)};
            return 0;
        });
        seal(team);
        put(team, targets.at(k), label, Label::bytes(args.shape), args.store);
    }
}

template <class Team>
TEAM_FN void send_token(const Team& team, const DispatchArgs& args, const RecvLayout& layout, int token) {
    const Shape& shape = args.shape;
    const std::uint64_t slot = args.window.recv.slot(args.progress->dispatched);
    const bf16* x = args.x + static_cast<std::int64_t>(token) * shape.hidden;
    std::byte* label = team.stage(Label::bytes(shape));
    const auto rows = rows_of(team, args, token);
    const auto place = [&](std::uint64_t part, std::uint64_t bytes) {
        return team.fan(shape.num_topk, [&](int k) -> std::byte* {
            if (rows.at(k) < 0) return nullptr;
            const int peer = shape.owner(args.ledger.experts[token * shape.num_topk + k]);
            return args.peers.at<std::byte>(peer,
                                            slot + part + static_cast<std::uint64_t>(rows.at(k)) * bytes);
        });
    };
    const auto targets = place(layout.x, shape.row_bytes());
    if (shape.is_fp8())
        quantize_to(team, targets, shape.num_topk, label, x, shape.num_groups(), shape.format, args.store);
    else
        put_to(team, targets, shape.num_topk, reinterpret_cast<const std::byte*>(x), shape.row_bytes(),
               args.store);
    send_labels(team, args, token, place(layout.labels, Label::bytes(shape)), label);
}

template <class Team>
void send(const Team& team, const DispatchArgs& args) {
    const RecvLayout layout = RecvLayout::carve(args.shape);
    team.share(args.num_tokens, [&](int token) { send_token(team, args, layout, token); });
    settle(team);
}

template <class Team>
bool deliver(const Team& team, const DispatchArgs& args) {
    for (int step = 0; step < args.shape.num_ranks; ++step) {
        const int peer = (args.shape.rank + step) % args.shape.num_ranks;
        const std::uint64_t desk = args.window.desk(args.shape.rank);
        publish(team, args.peers, peer, desk + offsetof(Desk, rows), args.progress->dispatched, 0);
    }
    return true;
}

template <class Team>
bool await_rows(const Team& team, const DispatchArgs& args) {
    *args.phase = Phase::rows;
    const auto signal = [&](int source) { return args.window.desk(source) + offsetof(Desk, rows); };
    return await_all(team, args.peers, args.epoch, signal, args.policy, *args.report);
}

template <class Team>
TEAM_FN void unpack_expert(const Team& team, const DispatchArgs& args, const RecvLayout& layout, int local) {
    const Shape& shape = args.shape;
    const std::uint64_t slot = args.window.recv.slot(args.epoch);
    const std::uint64_t first = shape.row_index(local, 0);
    const auto words = static_cast<std::uint64_t>(shape.scale_words());
    const std::uint64_t label_bytes = Label::bytes(shape);
    const int count = static_cast<int>(args.ledger.received[local]);
    const auto* labels = args.peers.mine<std::byte>(slot + layout.labels + first * label_bytes);
    auto* src_info = args.peers.mine<std::int32_t>(slot + layout.src_info) + first;
    if (words != 0 && args.columns) {
        auto* columns = args.peers.mine<std::uint32_t>(slot + layout.scales) + first * words;
        transpose(team,
                  WordMatrix{labels, label_bytes, columns, shape.max_rows(), count, shape.scale_words()});
    }
    team.lanes(count, [&](int row) {
        const std::byte* origin =
            labels + static_cast<std::uint64_t>(row) * label_bytes + Label::origin_offset(shape);
        src_info[row] = reinterpret_cast<const Origin*>(origin)->token;
    });
    if (args.stats != nullptr) team.once([&] { return args.stats[local] += count; });
}

template <class Team>
void unpack(const Team& team, const DispatchArgs& args) {
    const RecvLayout layout = RecvLayout::carve(args.shape);
    team.share(args.shape.num_local(), [&](int local) { unpack_expert(team, args, layout, local); });
    settle(team);
}

DEEP_LL_TIER_END
