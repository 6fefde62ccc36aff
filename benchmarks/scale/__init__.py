# SPDX-License-Identifier: Apache-2.0
"""What a large job costs on 1 to 1024 GPUs, computed from measured rates, and what binds first."""
