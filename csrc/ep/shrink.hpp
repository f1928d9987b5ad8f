// shrink.hpp: what dispatch and combine do besides where ranks may be left out (a PeerMap with a mask).
//
// Who is left out is each rank's own finding at first, so ranks may disagree for a call; then no two may have
// the same row in mind. Hence not every source works out where its rows go: the owner of an expert decides,
// when it has heard or left out everybody, and grants each source its first row. A source without a grant
// sends nothing.
//
//   tell_view, adopt_views   whom this rank has left out, with its counts; others leave them out, too
//   exchange_grants          from owners to sources                          -> signal granted
//   close_gaps               a source that was granted rows and did not deliver them: later ones move up
//   meet                     all ranks have come to the same place          -> signal met
#pragma once

#include "ep/blame.hpp"
#include "team/members.hpp"

DEEP_LL_TIER_BEGIN

// Tells peers whom this rank has left out, and them that they are: they may not have heard it.
template <class Team>
TEAM_FN void tell_view(const Team& team, const DispatchArgs& args, std::uint32_t epoch) {
    const std::uint64_t own = args.window.view_of(epoch, args.shape.rank);
    const auto* mask = reinterpret_cast<const std::uint64_t*>(args.peers.mask);
    const int num_words = static_cast<int>(args.window.view_stride / 8);
    args.peers.each([&](int peer) {
        auto* view = args.peers.at<std::uint64_t>(peer, own);
        team.lanes(num_words, [&](int i) { view[i] = mask[i]; });
        ship(team, args.peers, {peer, own}, args.window.view_stride);
    });
    team.once([&] {
        for (int rank = 0; rank < args.shape.num_ranks; ++rank)
            if (args.peers.is_masked(rank)) tell_left_out(team, args.peers, rank);
    });
}

// Leaves out whom others have left out, in the order of ranks; what those say who are left out by then does
// not count. So all who heard the same come to the same.
template <class Team>
TEAM_FN void adopt_views(const Team& team, const DispatchArgs& args, std::uint32_t epoch) {
    const PeerMap& peers = args.peers;
    const auto* mask = reinterpret_cast<const std::uint64_t*>(peers.mask);
    const auto has_news = [&](int source) {
        if (peers.is_masked(source)) return false;
        const auto* view = peers.mine<std::uint64_t>(args.window.view_of(epoch, source));
        std::uint64_t news = 0;
        for (std::uint64_t i = 0; i < args.window.view_stride / 8; ++i) news |= view[i] & ~mask[i];
        return news != 0;
    };
    if (team.first(args.shape.num_ranks, has_news) < 0) return;
    team.once([&] {
        for (int source = 0; source < args.shape.num_ranks; ++source) {
            if (peers.is_masked(source)) continue;
            const auto* view = peers.mine<std::uint8_t>(args.window.view_of(epoch, source));
            for (int rank = 0; rank < args.shape.num_ranks; ++rank)
                if (view[rank] != 0 && rank != peers.rank && !peers.is_masked(rank))
                    leave_out(team, peers, rank);
        }
    });
    team.sync();
}

// `first`: where the rows of `source` begin at a local expert.
TEAM_FN void write_grant(
    const DispatchArgs& args, std::uint32_t epoch, int source, int local, std::uint32_t first) {
    if (args.peers.is_masked(source)) return;
    const std::uint64_t at = args.window.grant(epoch, args.shape.first_local() + local);
    *args.peers.at<std::uint32_t>(source, at) = first;
}

// What an owner granted in the call's slot of recv, and that it is too far behind.
TEAM_FN Nonsense bad_grant(const Common& args, int expert) {
    const std::uint64_t at = args.window.grant(args.progress->received[args.recv_slot], expert);
    const auto most =
        static_cast<std::uint64_t>(args.shape.rank) * static_cast<std::uint64_t>(args.shape.max_tokens);
    return {Nonsense::Of::grant,
            args.shape.owner(expert),
            Phase::grants,
            expert,
            *args.peers.mine<std::uint32_t>(at),
            most};
}

// Publishes this rank's grants and takes those of all owners. False: others have left this rank out.
template <class Team>
TEAM_FN bool exchange_grants(const Team& team, const DispatchArgs& args, std::uint32_t epoch) {
    const Shape& shape = args.shape;
    const std::uint64_t own = args.window.grant(epoch, shape.first_local());
    args.peers.each([&](int peer) {
        ship(team, args.peers, {peer, own}, static_cast<std::uint64_t>(shape.num_local()) * 4);
    });
    publish_all(team, args.peers, {Word{args.window.desk(shape.rank) + offsetof(Desk, granted), epoch, 0}});
    const auto signal = [&](int owner) { return args.window.desk(owner) + offsetof(Desk, granted); };
    // An owner grants for the next dispatch when it has heard this rank's next counts.
    const Awaited awaited{static_cast<std::uint32_t>(Phase::grants), epoch, 0};
    if (!await_all(team, args.peers, awaited, signal, args.policy, args.verdict->wait)) return false;
    const auto* grants = args.peers.mine<std::uint32_t>(args.window.grant(epoch, 0));
    team.lanes(shape.num_experts, [&](int expert) {
        args.ledger.base[expert] = args.peers.is_masked(shape.owner(expert)) ? kNoRow : grants[expert];
    });
    // Before this rank's rows are those of the ranks before it. So none lies beyond the last of its expert.
    const auto most = static_cast<std::uint32_t>(shape.rank * shape.max_tokens);
    const int bad = team.first(shape.num_experts, [&](int expert) {
        return args.ledger.serves(expert) && args.ledger.base[expert] > most;
    });
    if (bad >= 0) team.once([&] { blame(team, args, bad_grant(args, bad)); });
    return bad < 0;
}

// The owner of an expert is left out, or was when tokens were sent.
TEAM_FN bool is_lost(const CombineArgs& args, int expert) {
    return !args.ledger.serves(expert) || args.peers.is_masked(args.shape.owner(expert));
}

// Row of a choice at an owner, who may have moved it since it granted it.
TEAM_FN std::uint64_t granted_row(const CombineArgs& args, int entry, int expert) {
    const std::uint32_t epoch = args.progress->received[args.recv_slot];
    return *args.peers.mine<std::uint32_t>(args.window.grant(epoch, expert)) +
           static_cast<std::uint32_t>(args.ledger.ordinals[entry]);
}

// Moves `count` rows of a local expert, and their labels, to an earlier place. A lane moves the same words of
// each, so that no row is written before it was read.
template <class Team>
TEAM_FN void move_rows(
    const Team& team, const DispatchArgs& args, std::uint64_t from, std::uint64_t to, std::uint32_t count) {
    const RecvLayout layout = RecvLayout::carve(args.shape);
    const auto move = [&](std::uint64_t part, std::uint64_t bytes) {
        auto* rows = args.peers.mine<std::uint64_t>(args.recv() + part);
        const std::uint64_t words = bytes / 8;
        for (std::uint32_t row = 0; row < count; ++row)
            team.lanes(static_cast<int>(words), [&](int i) {
                rows[(to + row) * words + static_cast<std::uint64_t>(i)] =
                    rows[(from + row) * words + static_cast<std::uint64_t>(i)];
            });
    };
    move(layout.x, args.shape.row_bytes());
    move(layout.labels, Label::bytes(args.shape));
}

// What of a local expert remains without those who are left out.
template <class Team>
TEAM_FN void close_gap(const Team& team, const DispatchArgs& args, std::uint32_t epoch, int local) {
    const int num_ranks = args.shape.num_ranks;
    std::int64_t* layout = args.layout_range + local * num_ranks;
    std::uint32_t end = 0;
    for (int source = 0; source < num_ranks; ++source) {
        const std::int64_t range = layout[source];
        const std::uint32_t begin = begin_of(range), to = end;
        const std::uint32_t count = args.peers.is_masked(source) ? 0 : count_of(range);
        if (count != 0 && begin != to)
            move_rows(team, args, args.shape.row_index(local, begin), args.shape.row_index(local, to), count);
        team.sync();
        team.once([&] {
            layout[source] = range_of(to, count);
            write_grant(args, epoch, source, local, to);
        });
        const std::uint64_t at = args.window.grant(epoch, args.shape.first_local() + local);
        if (!args.peers.is_masked(source)) ship(team, args.peers, {source, at}, 4);
        end += count;
    }
    team.once([&] {
        args.ledger.received[local] = end;
        args.recv_count[local] = static_cast<std::int32_t>(end);
    });
}

// Sources that are left out by now may have been granted rows: those are no rows. Peers that will read
// outputs in place find the new grants before this rank's next signal.
template <class Team>
TEAM_FN void close_gaps(const Team& team, const DispatchArgs& args) {
    const int num_ranks = args.shape.num_ranks;
    const int gap = team.first(args.shape.num_local() * num_ranks, [&](int i) {
        return args.peers.is_masked(i % num_ranks) && count_of(args.layout_range[i]) != 0;
    });
    if (gap < 0) return;
    const std::uint32_t epoch = args.progress->received[args.recv_slot];
    for (int local = 0; local < args.shape.num_local(); ++local) close_gap(team, args, epoch, local);
    team.sync();
}

// All ranks have come here, or are left out.
template <class Team>
TEAM_FN bool meet(const Team& team, const Common& args) {
    const std::uint32_t time = args.progress->met + 1;
    publish_all(team, args.peers, {Word{args.window.desk(args.shape.rank) + offsetof(Desk, met), time, 0}});
    team.sync();
    team.once([&] { args.progress->met = time; });
    const auto signal = [&](int source) { return args.window.desk(source) + offsetof(Desk, met); };
    // Others may have met this rank already, and come again.
    return await_all(team, args.peers, {static_cast<std::uint32_t>(Phase::meeting), time, 1}, signal,
                     args.policy, args.verdict->wait);
}

DEEP_LL_TIER_END
