"""LangGraph: an agent that is killed between the effect of its tool and its checkpoint."""
