// Everything is in nvshmem.h.
#pragma once
