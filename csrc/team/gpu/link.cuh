// link.cuh: peers that this GPU reaches over a network. What is for them waits in this rank's own heap; a
// warp hands it over, and counts it in boxes of its reader (team/signal.hpp). Without NVSHMEM in these
// kernels there are no such peers, and nothing here does anything.
#pragma once

#include "symm/network.hpp"
#include "team/gpu/gpu_team.cuh"
#if defined(DEEP_LL_NETWORK)
#include "team/gpu/network.cuh"
#endif

DEEP_LL_TIER_BEGIN

constexpr std::uint32_t kAnyAhead = ~0u >> 1;

// Where this rank counts what comes from `source`.
TEAM_FN std::uint64_t* box_at(const PeerMap& peers, int source, const Box& box) {
    const std::uint64_t mail = network_of(peers).mail + static_cast<std::uint64_t>(source) * sizeof(Mail);
    return &peers.mine<Signal>(mail + box.offset())->word;
}

// To a place that is behind a link; nothing if it is not. All lanes of the team come here, one warp ships.
template <class Team>
TEAM_FN void ship_from(
    const Team& team, const PeerMap& peers, const Place& place, const std::byte* from, std::uint64_t bytes) {
#if defined(DEEP_LL_NETWORK)
    if (!peers.is_linked(place.peer)) return;
    team.sync();  // lanes of this team may have written it just now
    if (team.warp() != 0) return;
    std::byte* to = peers.mine<std::byte>(place.offset);
    hand_over(network_of(peers), Letter{place.peer, static_cast<std::uint32_t>(team.index()), to, from, bytes,
                                        box_at(peers, peers.rank, place.box)});
#endif
}
template <class Team>
TEAM_FN void ship(const Team& team, const PeerMap& peers, const Place& place, std::uint64_t bytes) {
    ship_from(team, peers, place, peers.at<std::byte>(place.peer, place.offset), bytes);
}

// What all ranks were told last: it stands in this rank's own heap too. A network adds the difference, which
// is cheaper than to set a word, and is as good where a word has one writer.
template <int kWords>
struct LastTold {
    std::uint64_t words[kWords] = {}, boxes[kWords] = {};

    TEAM_FN LastTold(const PeerMap& peers, const Word (&now)[kWords]) {
#if defined(DEEP_LL_NETWORK)
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            words[i] = load_relaxed_sys(&peers.mine<Signal>(now[i].signal)->word);
            if (now[i].parcel != Parcel::none)
                boxes[i] = load_relaxed_sys(box_at(peers, peers.rank, now[i].box()));
        }
#endif
    }
};

// This rank's own boxes hold what the others' will.
template <int kWords>
TEAM_FN void keep_boxes(const PeerMap& peers, const Word (&words)[kWords]) {
#if defined(DEEP_LL_NETWORK)
#pragma unroll
    for (const Word& word : words)
        if (word.parcel != Parcel::none)
            store_relaxed_sys(box_at(peers, peers.rank, word.box()), signal_word(word.epoch, 0));
#endif
}

template <int kWords>
TEAM_FN void tell_by_network(const PeerMap& peers,
                             int peer,
                             const Word (&words)[kWords],
                             const LastTold<kWords>& last) {
#if defined(DEEP_LL_NETWORK)
    const Network& network = network_of(peers);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
        const Word& word = words[i];
        if (word.parcel != Parcel::none)
            tell_of_sent(network, peer, box_at(peers, peers.rank, word.box()),
                         signal_word(word.epoch, 0) - last.boxes[i]);
        add_there(network, peer, &peers.mine<Signal>(word.signal)->word,
                  signal_word(word.epoch, word.value) - last.words[i]);
    }
#endif
}

// A word that came by the network was seen: from now on what came before it can be read.
TEAM_FN void see_what_landed(const std::uint64_t* word) {
#if defined(DEEP_LL_NETWORK)
    look_at(const_cast<std::uint64_t*>(word));
#endif
}

// A peer's word, or the box it tells of where that has not come as far.
TEAM_FN std::uint64_t what_has_come(const PeerMap& peers, int source, std::uint64_t signal, const Box& box) {
    if (peers.ships_later(source) && !box.is_none()) {
        const std::uint64_t landed = load_relaxed_sys(box_at(peers, source, box));
        if (!reached(landed, box.epoch)) return landed;
    }
    return load_relaxed_sys(&peers.mine<Signal>(signal)->word);
}

DEEP_LL_TIER_END
