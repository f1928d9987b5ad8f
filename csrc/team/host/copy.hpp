// copy.hpp: rows of bytes to a peer. put() moves, settle() makes sure that what was put comes before what is
// published.
#pragma once

#include "symm/link.hpp"
#include "team/host/host_team.hpp"
#include "team/host/vec.hpp"

DEEP_LL_TIER_BEGIN

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
TEAM_FN void stream16(std::byte* to, const std::byte* from) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), load<__m128i>(from));
}

// `to` is aligned to a whole vector.
TEAM_FN void stream_vector(std::byte* to, VecU32 value) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), __builtin_bit_cast(__m512i, value));
#elif defined(__AVX2__)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), __builtin_bit_cast(__m256i, value));
#else
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), __builtin_bit_cast(__m128i, value));
#endif
}

TEAM_FN void stream_fence() {
    _mm_sfence();
}
#else
// No streaming stores here (or a sanitizer that would not see them): plain ones.
TEAM_FN void stream16(std::byte* to, const std::byte* from) {
    std::memcpy(to, from, 16);
}
TEAM_FN void stream_vector(std::byte* to, VecU32 value) {
    store(to, value);
}
TEAM_FN void stream_fence() {}
#endif

TEAM_FN void prefetch(const void* at) {
    __builtin_prefetch(at);
}

template <bool kStreaming>
TEAM_FN void store_line(std::byte* to, const std::byte* from) {
    constexpr int kVectors = static_cast<int>(kLine) / kVecBytes;
    VecU32 line[kVectors];
    for (int i = 0; i < kVectors; ++i) line[i] = load<VecU32>(from + i * kVecBytes);
    for (int i = 0; i < kVectors; ++i) {
        if constexpr (kStreaming)
            stream_vector(to + i * kVecBytes, line[i]);
        else
            store(to + i * kVecBytes, line[i]);
    }
}

// 16-byte multiples, small: memcpy's own choice for such blocks (rep movs) is several times slower. Streaming
// stores must start at a line.
template <bool kStreaming>
TEAM_FN void copy_block(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    std::uint64_t at = 0;
    if constexpr (kStreaming) {
        const std::uint64_t head = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
        for (; at < head && at < bytes; at += 16) stream16(to + at, from + at);
    }
    for (; at + kLine <= bytes; at += kLine) store_line<kStreaming>(to + at, from + at);
    for (; at < bytes; at += 16) std::memcpy(to + at, from + at, 16);
}

TEAM_FN void check_row(const std::byte* to, const std::byte* from, std::uint64_t bytes) {
    DEEP_LL_INVARIANT(
        (bytes | reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) %
                kVectorBytes ==
            0,
        bytes);
}

// A row from this rank's memory to anyone's.
template <class Team>
TEAM_FN void put(const Team&, std::byte* to, const std::byte* from, std::uint64_t bytes, Store how) {
    constexpr std::uint64_t kAhead = 512, kBlock = 256;
    check_row(to, from, bytes);
    if (how == Store::cached) {
        std::memcpy(to, from, bytes);
        return;
    }
    for (std::uint64_t at = 0; at < bytes; at += kBlock) {
        const std::uint64_t size = bytes - at < kBlock ? bytes - at : kBlock;
        for (std::uint64_t i = 0; i < kBlock; i += kLine) prefetch(from + at + kAhead + i);
        copy_block<true>(to + at, from + at, size);
    }
}

// To a peer that may be behind a link.
template <class Team>
TEAM_FN void put_row(const Team& team,
                     const PeerMap& peers,
                     const Place& to,
                     const std::byte* from,
                     std::uint64_t bytes,
                     Store how) {
    if (peers.is_linked(to.peer))
        peers.link->put(to.peer, to.offset, from, bytes);
    else
        put(team, peers.at<std::byte>(to.peer, to.offset), from, bytes, how);
}

// To a place that is behind a link; nothing if it is not.
template <class Team>
TEAM_FN void ship_from(
    const Team&, const PeerMap& peers, const Place& place, const std::byte* from, std::uint64_t bytes) {
    if (peers.is_linked(place.peer)) peers.link->put(place.peer, place.offset, from, bytes);
}
// What was written at that place.
template <class Team>
TEAM_FN void ship(const Team& team, const PeerMap& peers, const Place& place, std::uint64_t bytes) {
    ship_from(team, peers, place, peers.at<std::byte>(place.peer, place.offset), bytes);
}

// The same row to targets.at(k), k < num_targets, where that is not null; it is read once.
template <class Team, class Targets>
TEAM_FN void put_to(const Team&,
                    const Targets& targets,
                    int num_targets,
                    const std::byte* from,
                    std::uint64_t bytes,
                    Store how) {
    constexpr std::uint64_t kBlock = 512;
    for (std::uint64_t at = 0; at < bytes; at += kBlock) {
        const std::uint64_t size = bytes - at < kBlock ? bytes - at : kBlock;
        for (std::uint64_t i = 0; i < kBlock; i += kLine) prefetch(from + bytes + at + i);  // the next row
        for (int k = 0; k < num_targets; ++k) {
            if (targets.at(k) == nullptr) continue;
            if (how == Store::streaming)
                copy_block<true>(targets.at(k) + at, from + at, size);
            else
                copy_block<false>(targets.at(k) + at, from + at, size);
        }
    }
}

// The same row to all targets, but for 8 bytes, which are patch(k).
template <class Team, class Targets, class Patch>
TEAM_FN void put_patched(
    const Team& team, const Targets& targets, int num_targets, const Patched& row, Patch patch, Store how) {
    for (int k = 0; k < num_targets; ++k) {
        if (targets.at(k) == nullptr) continue;
        const auto difference = patch(k);
        static_assert(sizeof difference == 8);
        std::memcpy(row.bytes + row.at, &difference, 8);
        put(team, targets.at(k), row.bytes, row.num_bytes, how);
    }
}

// All that this team put is ordered before what is published after this phase.
template <class Team>
TEAM_FN void settle(const Team& team) {
    stream_fence();
    team.sync();
}

DEEP_LL_TIER_END
