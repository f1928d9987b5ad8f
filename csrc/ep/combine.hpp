// combine.hpp: the experts' outputs back to the tokens' ranks, added up with weights.
//
//   push   each output row is put into the place of its token and choice at its source   -> signal combined
//   pull   the outputs already lie in this rank's heap: only say so                         -> signal
//   combined gather when all signals are here: add up the rows that came, or read them where they lie
//
// A slot of the heap is written again only after every peer has read it: they say so in the signal
// `consumed`, which travels with the next dispatch's counts, or at the start of a combine if no dispatch came
// in between.
#pragma once

#include "ep/args.hpp"
#include "team/reduce.hpp"

DEEP_LL_TIER_BEGIN

constexpr std::uint32_t kSlots = 2;

// Every peer has read combine `epoch`.
template <class Team>
bool await_consumed(const Team& team, const Common& args, std::uint32_t epoch) {
    *args.phase = Phase::credit;
    const auto signal = [&](int source) { return args.window.desk(source) + offsetof(Desk, consumed); };
    return await_all(team, args.peers, epoch, signal, args.policy, *args.report);
}

template <class Team>
void tell_consumed(const Team& team, const Common& args) {
    if (args.progress->told_consumed == args.progress->consumed) return;
    for (int step = 0; step < args.shape.num_ranks; ++step) {
        const int peer = (args.shape.rank + step) % args.shape.num_ranks;
        publish(team, args.peers, peer, args.window.desk(args.shape.rank) + offsetof(Desk, consumed),
                args.progress->consumed, 0);
    }
    args.progress->told_consumed = args.progress->consumed;
}

// The slot of the next combine is free everywhere. Nothing to wait for when a dispatch came in between.
template <class Team>
bool credit(const Team& team, const Common& args) {
    tell_consumed(team, args);
    return await_consumed(team, args, args.progress->combined + 1 - kSlots);
}

template <class Team>
TEAM_FN void push_row(
    const Team& team, const CombineArgs& args, const std::byte* label, int local, std::uint64_t row) {
    const Shape& shape = args.shape;
    const Origin origin = *reinterpret_cast<const Origin*>(label + Label::origin_offset(shape));
    const std::uint64_t to =
        args.window.returned(shape, args.progress->combined + 1, origin.choice, origin.token);
    const bf16* from = args.x + shape.row_index(local, row) * static_cast<std::uint64_t>(shape.hidden);
    put(team, args.peers.at<std::byte>(static_cast<int>(origin.source), to),
        reinterpret_cast<const std::byte*>(from), shape.bf16_bytes(), args.store);
}

template <class Team>
void push(const Team& team, const CombineArgs& args) {
    if (args.pulled) return;
    const Shape& shape = args.shape;
    const std::uint64_t labels = args.window.recv.slot(args.round) + RecvLayout::carve(shape).labels;
    for (int local = 0; local < shape.num_local(); ++local) {
        team.share(static_cast<int>(args.ledger.received[local]), [&](int row) {
            const std::uint64_t label =
                labels + shape.row_index(local, static_cast<std::uint64_t>(row)) * Label::bytes(shape);
            push_row(team, args, args.peers.mine<std::byte>(label), local, static_cast<std::uint64_t>(row));
        });
    }
    settle(team);
}

TEAM_FN std::uint32_t combined_value(const CombineArgs& args) {
    return args.round << 1 | (args.pulled ? 1u : 0u);
}

template <class Team>
bool offer(const Team& team, const CombineArgs& args) {
    const std::uint32_t epoch = args.progress->combined + 1;
    for (int step = 0; step < args.shape.num_ranks; ++step) {
        const int peer = (args.shape.rank + step) % args.shape.num_ranks;
        const std::uint64_t signal =
            args.window.desk(args.shape.rank) + offsetof(Desk, combined) + epoch % 2 * sizeof(Signal);
        publish(team, args.peers, peer, signal, epoch, combined_value(args));
    }
    args.progress->combined = epoch;
    return true;
}

// Every peer has sent, and answers the same dispatch in the same way.
template <class Team>
bool await_outputs(const Team& team, const CombineArgs& args) {
    *args.phase = Phase::outputs;
    const auto signal = [&](int source) {
        return args.window.desk(source) + offsetof(Desk, combined) + args.epoch % 2 * sizeof(Signal);
    };
    if (!await_all(team, args.peers, args.epoch, signal, args.policy, *args.report)) return false;
    for (int source = 0; source < args.shape.num_ranks; ++source) {
        const std::uint32_t value = value_of(observe(team, args.peers, signal(source)));
        if (value == combined_value(args)) continue;
        *args.disagreement = {source, {}, value};
        args.progress->consumed = args.epoch;  // nothing of it will be read
        return false;
    }
    return true;
}

TEAM_FN const bf16* answer(const CombineArgs& args, int token, int choice, int expert) {
    const Shape& shape = args.shape;
    if (!args.pulled) return args.peers.mine<bf16>(args.window.returned(shape, args.epoch, choice, token));
    const auto row = static_cast<std::uint64_t>(args.ledger.rows[token * shape.num_topk + choice]);
    return args.peers.at<bf16>(shape.owner(expert),
                               args.window.output(shape, args.epoch, shape.local(expert), row));
}

template <class Team>
void gather(const Team& team, const CombineArgs& args) {
    team.share(args.num_tokens, [&](int token) {
        WeightedRows in;
        in.count = 0;
        for (int k = 0; k < args.shape.num_topk; ++k) {
            const int expert = args.choices[token * args.shape.num_topk + k];
            if (expert < 0) continue;
            in.rows[in.count] = answer(args, token, k, expert);
            in.weights[in.count++] = args.weights[token * args.shape.num_topk + k];
        }
        weighted_sum(team, args.out + static_cast<std::int64_t>(token) * args.shape.hidden, in,
                     args.shape.hidden, args.store);
    });
    settle(team);
}

template <class Team>
bool count_consumed(const Team&, const CombineArgs& args) {
    args.progress->consumed = args.epoch;
    return true;
}

DEEP_LL_TIER_END
