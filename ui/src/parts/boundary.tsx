// Around each view: one that fails says so in its place, and the rest of the page goes on.
import { Component, type ComponentChildren } from "preact";
import { safe } from "../format";
import { Empty } from "./small";

interface Props {
  /** The address of the view: another one is tried anew. */
  place: string;
  children: ComponentChildren;
}

interface State {
  failure: string | null;
}

export class Boundary extends Component<Props, State> {
  override state: State = { failure: null };

  static override getDerivedStateFromError(error: unknown): State {
    return { failure: error instanceof Error ? error.message : String(error) };
  }

  override componentDidCatch(error: unknown): void {
    console.error(error);
  }

  override componentDidUpdate(before: Props): void {
    if (before.place !== this.props.place && this.state.failure !== null) this.setState({ failure: null });
  }

  override render({ children }: Props, { failure }: State): ComponentChildren {
    if (failure === null) return children;
    return (
      <div class="card" role="alert">
        <Empty title="This view cannot be shown">
          <p class="wrap">{`This is a bug in holdfast: ${safe(failure, 400)}`}</p>
          <p>The experiment is not affected, and all other views work. Please report the bug with this message.</p>
        </Empty>
      </div>
    );
  }
}
