// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace padfree {

// Scales of results in e4m3: what multiplies by their inverse may do so in fp16.
constexpr float kLeastE4m3Scale = 1.f / 16384, kMostE4m3Scale = 16384.f;

}  // namespace padfree
